# SPDX-License-Identifier: MIT
"""Audit events about files: opening, and everything that changes names, sizes and attributes."""

from __future__ import annotations

import sys
from _thread import get_ident
from posix import O_APPEND, O_CLOEXEC, O_CREAT, O_RDWR, O_TRUNC, O_WRONLY, DirEntry, lstat

from .answers import DENY, Answers
from .caps import Caps
from .channel import text_of
from .effects import Effects, refusal
from .observations import Observations
from .paths import Paths
from .seal import sealed
from .view import View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WRITING = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND
_PATH_ONLY = 0o10000000
_ENCODING = sys.getfilesystemencoding()
_KIND, _DIRECTORY, _REGULAR = 0o170000, 0o040000, 0o100000
_MAX_VERDICTS = 4096
_PASS = 1
_RECORD = 2


@sealed
class Files:
    """The handlers. Each gives None, or the error to raise."""

    def __init__(
        self, answers: Answers, view: View, paths: Paths, effects: Effects, observations: Observations, caps: Caps
    ) -> None:
        self._answers = answers
        self._view = view
        self._paths = paths
        self._effects = effects
        self._observations = observations
        self._own = observations.own
        self._caps = caps
        # By the resolved path: what to do, or the refusal that is ready.
        self._verdicts: dict[str, Any] = {}
        self._cacheable = not answers.has_once

    def handlers(self) -> Any:
        """The handlers by the name of their event."""
        found = {
            "open": self._quick_open_again() if self._effects.replay else self._quick_open(),
            "os.truncate": self.on_truncate,
            "os.rename": self.on_rename,
            "os.link": self.on_link,
            "os.symlink": self.on_symlink,
            "os.mkdir": self.on_mkdir,
            "os.remove": self.changes("fs.remove", 1),
            "os.rmdir": self.changes("fs.remove", 1),
            "os.chmod": self.changes("fs.chmod", 2),
            "os.chown": self.changes("fs.chown", 3),
            "os.utime": self.changes("fs.utime", 3),
            "os.chflags": self.changes("fs.chmod", None),
            "os.setxattr": self.changes("fs.xattr", None),
            "os.removexattr": self.changes("fs.xattr", None),
            "sqlite3.connect": self.on_sqlite,
        }
        if self._effects.strict:
            found["os.listdir"] = found["os.scandir"] = self.on_list
        return found

    def forget(self) -> None:
        """Verdicts were made before the view was complete: make them anew."""
        self._verdicts.clear()

    def _quick_open(self) -> Any:
        """`on_open`, with a short way for a file that was read before and has not changed since: whatever the text
        leads to now, it is the same file with the same content, and its record is ready."""
        quick, slow, sent_again = self._observations.quick, self.on_open, _sending(self._effects.channel.send_ready)
        main, loaded = get_ident(), sys.modules
        lane = self._effects.lanes.first()
        # What its clocks said must be told before.
        calls = lane.calls

        def on_open(given: Any, mode: Any, flags: Any) -> Any:
            if type(given) is str and flags == O_CLOEXEC:
                known = quick.get(given)
                if (
                    known is not None
                    and not calls
                    and get_ident() == main
                    and not lane.depth
                    and "_asyncio" not in loaded
                    and sent_again(given, known)
                ):
                    return None
            return slow(given, mode, flags)

        return on_open

    def _quick_open_again(self) -> Any:
        """The same in a replay, for a file that is opened at the same place of the program again: the record says
        where."""
        observations, effects, slow = self._observations, self._effects, self.on_open
        quick, sent_again, frame_at = observations.quick, _sending(effects.channel.send_ready), sys._getframe
        main, loaded = get_ident(), sys.modules
        lane = effects.lanes.first()

        def on_open(given: Any, mode: Any, flags: Any) -> Any:
            if type(given) is not str or flags != O_CLOEXEC:
                return slow(given, mode, flags)
            try:
                # Below this function and the hook.
                caller = frame_at(2)
            except ValueError:
                # The interpreter by itself, when nothing of the program runs: the lines of its last traceback.
                return slow(given, mode, flags)
            code, line = caller.f_code, caller.f_lineno
            alone = get_ident() == main and not lane.served and not lane.depth and "_asyncio" not in loaded
            known = quick.get(given)
            if known is not None and alone and known[6] is code and known[7] == line and sent_again(given, known):
                return None
            observations.ready = None
            refused = slow(given, mode, flags)
            ready = observations.ready
            if refused is None and ready is not None and alone and effects.is_programs(code.co_filename):
                key, body = ready
                frame = effects.frame_at(body, lane.name, code.co_filename, line)
                quick[given] = (key[0], key[3], key[1], key[2], key[4], frame, code, line)
            return refused

        return on_open

    def on_open(self, given: Any, mode: Any, flags: Any) -> Any:
        """`open`, `os.open`, `io.FileIO` and what C code opens."""
        kind = type(given)
        if kind is int:
            return None
        own = self._own
        if own and own.get(id(given)) is given:
            return None
        path = given if kind is str else self.text(given)
        if path is None:
            return self._no_text(given)
        if (
            flags & _WRITING
            or (type(mode) is str and not flags and mode[:1] in ("w", "a", "x"))
            or (type(mode) is str and "+" in mode)
        ):
            return self._write(path, flags, mode)
        full, found = self._paths.resolve(path)
        verdict = self._verdicts.get(full)
        if type(verdict) is not int:
            # What was refused may have become a directory, whose names may be looked up.
            if verdict is not None and not _is_directory(found):
                verdict = self._effects.deny_again(verdict) or _RECORD
            else:
                verdict = self._read_verdict(full, found)
            if type(verdict) is not int:
                return verdict
        if verdict == _PASS or flags & _PATH_ONLY:
            return None
        return self._observations.read(full, found, path if path is given else "")

    def _read_verdict(self, full: str, found: Any) -> Any:
        identity = f"{found.st_dev}:{found.st_ino}" if found is not None else None
        allowed, rule, _, _ = self._answers.read(full, identity)
        if not allowed and rule is not None:
            return self._refuse(full, found)
        if self._view.is_code(full):
            verdict = _PASS
        elif allowed:
            verdict = _RECORD
        elif self._view.reads(full) or self._is_directory_lookup(full, found):
            verdict = _PASS
        else:
            return self._refuse(full, found)
        self._keep(full, found, verdict)
        return verdict

    def _refuse(self, full: str, found: Any) -> Any:
        """The error of a denied reading, recorded; or that it goes on, where denials are only recorded."""
        ready = self._effects.denial("read", full)
        # Which of the kernel's files are a process's own changes when it forks.
        if not full.startswith("/proc/"):
            self._keep(full, found, ready)
        return self._effects.deny_again(ready) or _RECORD

    def _keep(self, full: str, found: Any, verdict: Any) -> None:
        """Remember a verdict, unless it may be another one the next time: what is counted, and a directory, which a
        file may replace."""
        if self._cacheable and not _is_directory(found):
            if len(self._verdicts) >= _MAX_VERDICTS:
                self._verdicts.clear()
            self._verdicts[full] = verdict

    def _is_directory_lookup(self, full: str, found: Any) -> bool:
        """Opening a directory gives its names only: behind a wall the kernel decides which."""
        return _is_directory(found) and (not self._effects.strict or self._view.is_listable(full))

    def _write(self, path: str, flags: int, mode: Any) -> Any:
        full, found = self._paths.resolve(path)
        refused, recorded = self._may_write(full)
        if refused is not None or not recorded:
            return refused
        truncates = flags & O_TRUNC or (type(mode) is str and mode[:1] == "w")
        refused = self._caps.opens(path, full)
        if refused is not None:
            return refused
        if flags & O_RDWR and not truncates and found is not None:
            # Both ways: what is read is an observation too, and counts where reading counts.
            refused = self._read_too(full, found)
            if refused is not None:
                return refused
        return self._effects.happens("fs.open_write", text_of({"path": full}))

    def _read_too(self, full: str, found: Any) -> Any:
        if not self._answers.has_once:
            return None
        if not self._answers.read(full, f"{found.st_dev}:{found.st_ino}")[0]:
            return self._effects.deny("read", full)
        return self._observations.counts(full, found)

    def _may_write(self, full: str, whole: bool = False) -> Any:
        """The refusal of writing a resolved path, if any, and whether it is to be recorded."""
        verdict = self._answers.write(full, None, None, whole)
        if verdict[0]:
            return None, True
        if verdict[1] is None and self._view.writes(full):
            return None, False
        return self._effects.deny("write", full), True

    def changes(self, op: str, directory: Any) -> Any:
        """A handler for an event that changes one path; `directory` is the place of its dir_fd among the arguments."""

        def handler(*arguments: Any) -> Any:
            given = arguments[0]
            if type(given) is int:
                return self._change_open(op, given)
            return self.change(op, given, arguments[directory] if directory is not None else -1)

        return handler

    def _change_open(self, op: str, descriptor: int) -> Any:
        """A change of an open file, which may have been opened for reading alone: behind a wall the kernel holds it,
        and only who will replay it must know."""
        if not self._effects.strict and not self._effects.recorded:
            return None
        try:
            path = self._paths.directory_of(descriptor)
        except OSError:
            return None
        # What has no name (a pipe, a file that was removed) is nobody else's.
        if path[:1] != "/" or path.endswith(" (deleted)"):
            return None
        return self.change(op, path) if self._effects.strict or self._answers.write(path)[0] else None

    def change(self, op: str, given: Any, directory: Any = -1, extra: Any = None) -> Any:
        """Whether one path may be made, removed or changed."""
        full = self._named(given, directory)
        if full is None:
            return self._no_text(given)
        whole = op == "fs.rename"
        refused, recorded = self._may_write(full, whole)
        if refused is not None or not recorded:
            return refused
        return self._effects.happens(op, text_of({"path": full, **(extra or {})}))

    def on_mkdir(self, given: Any, _mode: Any, directory: Any) -> Any:
        """Making a directory that exists changes nothing, and programs ask for it to be sure. Who will replay it must
        know that it was there."""
        full = self._named(given, directory)
        if full is None:
            return self._no_text(given)
        if self._paths.resolve(full)[1] is not None and not (self._effects.recorded and self._answers.write(full)[0]):
            return None
        return self.change("fs.mkdir", full)

    def on_rename(self, source: Any, target: Any, source_directory: Any, target_directory: Any) -> Any:
        """Both names must be writable, with everything below them."""
        from_full, to_full = self._named(source, source_directory), self._named(target, target_directory)
        if from_full is None or to_full is None:
            return self._no_text(source)
        recorded = False
        for full in (from_full, to_full):
            refused, is_recorded = self._may_write(full, True)
            if refused is not None:
                return refused
            recorded = recorded or is_recorded
        if not recorded:
            return None
        refused = self._caps.moves(from_full, to_full)
        return refused or self._effects.happens("fs.rename", text_of({"path": from_full, "to": to_full}))

    def on_link(self, source: Any, target: Any, source_directory: Any, target_directory: Any) -> Any:
        """A second name gives the rights of its place, so the file must have them already."""
        from_full, to_full = self._named(source, source_directory), self._named(target, target_directory)
        if from_full is None or to_full is None:
            return self._no_text(source)
        recorded = False
        for full in (from_full, to_full):
            refused, is_recorded = self._may_write(full)
            if refused is not None:
                return refused
            recorded = recorded or is_recorded
        return self._effects.happens("fs.link", text_of({"path": from_full, "to": to_full})) if recorded else None

    def on_symlink(self, source: Any, target: Any, directory: Any) -> Any:
        """Without a wall a link to what may not be read is refused: it could be swapped in behind a check."""
        to_full = self._named(target, directory)
        text = source if type(source) is str else self.text(source)
        if to_full is None or text is None:
            return self._no_text(target)
        if self._effects.strict and self._effects.enforce:
            place = to_full.rpartition("/")[0]
            leads_to, found = self._paths.resolve(text if text[:1] == "/" else f"{place}/{text}")
            verdict = self._read_verdict(leads_to, found)
            if type(verdict) is not int:
                return verdict
        return self.change("fs.symlink", to_full, -1, {"target": text})

    def on_truncate(self, given: Any, length: Any) -> Any:
        """By path or by descriptor: both can make a file grow."""
        if type(given) is int:
            return self._caps.grows_descriptor(given, length)
        full = self._named(given, -1, True)
        if full is None:
            return self._no_text(given)
        refused, recorded = self._may_write(full)
        if refused is not None or not recorded:
            return refused
        return self._caps.grows(full, length) or self._effects.happens("fs.truncate", text_of({"path": full}))

    def on_sqlite(self, database: Any) -> Any:
        """SQLite opens files below Python: the one that is named is asked about here."""
        path = database if type(database) is str else self.text(database)
        if path is None:
            return self._no_text(database)
        if path in ("", ":memory:") or path.startswith(("file::memory:", "file:?")):
            return None
        if path.startswith("file:"):
            path = _from_uri(path)
        full, found = self._paths.resolve(path)
        verdict = self._answers.write(full)
        if verdict[0]:
            return self._effects.happens("fs.open_write", text_of({"path": full}))
        if verdict[1] is None and self._view.writes(full):
            return None
        if found is None or self._effects.strict or (verdict[1] is not None and verdict[1][DENY]):
            return self._effects.deny("write", full)
        verdict = self._read_verdict(full, found)
        if type(verdict) is not int:
            return verdict
        return None if verdict == _PASS else self._observations.read(full, found)

    def on_list(self, given: Any) -> Any:
        """Names of a directory, where no wall hides what is not granted."""
        if type(given) is int:
            return None
        path = "." if given is None else self.text(given)
        if path is None:
            return self._no_text(given)
        full, found = self._paths.resolve(path or ".")
        if found is None or self._view.is_listable(full) or self._view.reads(full):
            return None
        verdict = self._read_verdict(full, found)
        return None if type(verdict) is int else verdict

    def text(self, given: Any) -> Any:
        """The text of a path whatever its type; None for an object that could say something else the next time."""
        kind = type(given)
        if kind is str:
            return given
        if kind is bytes:
            return given.decode(_ENCODING, "surrogateescape")
        if issubclass(kind, str):
            return str.__str__(given)
        if issubclass(kind, bytes):
            return bytes.__getitem__(given, slice(None)).decode(_ENCODING, "surrogateescape")
        if kind is DirEntry:
            return self.text(given.path)
        if self._effects.strict and not _is_honest(kind):
            return None
        # Behind a wall the worst that a two-faced path can do is to be recorded under its other face.
        path = kind.__fspath__(given)
        return self.text(path) if issubclass(type(path), (str, bytes)) else None

    def place_of(self, given: Any) -> Any:
        """The resolved path of what a program names, None when that has no text."""
        path = self.text(given)
        return None if path is None else self._paths.resolve(path)[0]

    def directory_of(self, descriptor: int) -> str:
        """The path of an open directory."""
        return str(self._paths.directory_of(descriptor))

    def _named(self, given: Any, directory: Any, follow: bool = False) -> Any:
        """The resolved place of a name, without following it; None when the object cannot be trusted."""
        path = given if type(given) is str else self.text(given)
        if path is None:
            return None
        if type(directory) is int and directory >= 0 and path[:1] != "/":
            path = self._paths.directory_of(directory) + "/" + path
        stripped = path.rstrip("/")
        return self._paths.resolve(stripped or path, follow)[0]

    def _no_text(self, given: Any) -> Any:
        if not self._effects.enforce:
            return None
        return refusal(f"agentbox: a path of type {type(given).__name__} is refused here; give its text: os.fspath()")


def _sending(send: Any) -> Any:
    """What sends the record of a file again that is ready, where the file is still what it was then; whether it did."""

    def sent_again(given: Any, known: Any) -> Any:
        try:
            found = lstat(given)
        except OSError:
            return False
        return (
            found.st_ino == known[0]
            and found.st_ctime == known[1]
            and found.st_size == known[2]
            and found.st_mtime == known[3]
            and found.st_dev == known[4]
            and send(known[5])
        )

    return sent_again


def _is_directory(found: Any) -> bool:
    return found is not None and found.st_mode & _KIND == _DIRECTORY


def _is_honest(kind: Any) -> bool:
    """Whether it is a path of pathlib with pathlib's own methods, which give the same text each time."""
    pathlib = sys.modules.get("pathlib")
    pure = getattr(pathlib, "PurePath", None)
    concrete = getattr(pathlib, "PosixPath", None)
    if pure is None or concrete is None or not (kind is concrete or kind is getattr(pathlib, "PurePosixPath", None)):
        return False
    code = getattr(pure.__fspath__, "__code__", None)
    return code is not None and code.co_filename.endswith(("/pathlib.py", "/pathlib/__init__.py", "/pathlib/_local.py"))


def _from_uri(text: str) -> str:
    path = text[len("file:") :].partition("?")[0].partition("#")[0]
    if path.startswith("//"):
        path = "/" + path[2:].partition("/")[2]
    parts = path.split("%")
    data = parts[0].encode(_ENCODING, "surrogateescape")
    for part in parts[1:]:
        try:
            data += bytes((int(part[:2], 16),)) + part[2:].encode(_ENCODING, "surrogateescape")
        except ValueError:
            data += b"%" + part.encode(_ENCODING, "surrogateescape")
    return data.decode(_ENCODING, "surrogateescape")
