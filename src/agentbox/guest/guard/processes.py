# SPDX-License-Identifier: MIT
"""Starting programs: which file will run, and whether a rule allows it with these words.

What is judged is the file, not the name that a program gives it. Without a wall a started interpreter must take the
guard along; with one the kernel judges it again.
"""

from __future__ import annotations

import sys
from posix import X_OK, access, environ, getpid, getppid, readlink

from .channel import text_of
from .effects import Effects
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ENCODING = sys.getfilesystemencoding()
_DEFAULT_PATH = "/bin:/usr/bin"
_MAX_SHOWN = 1000
_UNGUARDED = ("I", "S", "E")


@sealed
class Processes:
    """The handlers. Each gives None, or the error to raise."""

    def __init__(self, answers: Any, effects: Effects, paths: Any, files: Any, inherited: Any, read: Any) -> None:
        self._answers = answers
        self._effects = effects
        self._paths = paths
        self._files = files
        # Variables that a guarded child needs, as bytes.
        self._inherited = inherited
        try:
            self._parent = readlink("/proc/self/exe")
        except OSError:
            self._parent = sys.executable
        # Reads a small file without asking the policy.
        self._read = read

    def handlers(self) -> Any:
        """The handlers by the name of their event. `subprocess` is asked where it really starts something."""
        found = {
            "os.exec": self.on_exec,
            "os.posix_spawn": self.on_exec,
            "os.system": self.on_system,
        }
        if self._effects.strict:
            found |= {
                "os.kill": self.on_kill,
                "os.killpg": self.on_kill,
                "os.putenv": self.on_environment,
                "os.unsetenv": self.on_environment,
            }
        return found

    def on_exec(self, path: Any, argv: Any, env: Any) -> Any:
        """`os.exec*` and `os.posix_spawn*`."""
        text = self._files.text(path)
        if text is None:
            return self._effects.deny("exec", "a program whose path is no text")
        return self.starts(self.found(text, env), argv, env)

    def on_system(self, command: Any) -> Any:
        """`os.system` runs a shell."""
        text = self._files.text(command)
        if text is None:
            return self._effects.deny("exec", "a command that is no text")
        return self.starts(["/bin/sh"], ["sh", "-c", text], None)

    def starts(self, candidates: Any, argv: Any, env: Any) -> Any:
        """Whether the first candidate that can be run may be, with these words."""
        refused, started = self.judged(candidates, argv, env)
        if refused is not None or started is None:
            return refused
        return self._effects.may("proc.spawn", text_of(started))

    def judged(self, candidates: Any, argv: Any, env: Any) -> Any:
        """The refusal of starting the first candidate that can be run, if any; and what is recorded of it, None when
        there is none."""
        words = tuple([self._word(word) for word in _items(argv)])
        program = None
        for candidate in _items(candidates):
            text = self._files.text(candidate)
            if text is not None and access(text, X_OK):
                program = self._paths.resolve(text)[0]
                break
        shown = [word[:_MAX_SHOWN] for word in words[:64]]
        if program is None:
            # Nothing can run; the kernel says so in its own words.
            return None, None
        allowed = self._answers.start(words, program, self._parent)[0]
        refused = None
        started = {"argv": shown, "program": program}
        if not allowed:
            refused = self._effects.deny("exec", " ".join(shown), started)
        elif self._effects.strict and self._effects.enforce:
            reason = self._unguarded(program, words, env)
            if reason:
                refused = self._effects.deny("exec", f"{' '.join(shown)} ({reason})", started)
        return refused, started

    def starts_below(self, argv: Any, candidates: Any, directory: Any, env: Any) -> Any:
        """The same for a program that is started in another directory: relative names begin there."""
        return self.starts(self.placed(candidates, directory), argv, env)

    def placed(self, candidates: Any, directory: Any) -> Any:
        """The candidates of a program that is started in another directory."""
        base = None if directory is None else self._files.text(directory)
        if base is not None:
            names = [self._files.text(candidate) for candidate in _items(candidates)]
            return [name if name is None or name[:1] == "/" else f"{base}/{name}" for name in names]
        return candidates

    def found(self, name: str, env: Any) -> Any:
        """Where a program is looked for that is named without its place."""
        return [name] if "/" in name else [f"{d or '.'}/{name}" for d in _search_path(env)]

    def _word(self, word: Any) -> str:
        text = self._files.text(word)
        return "" if text is None else text

    def _unguarded(self, program: str, words: Any, env: Any) -> str:
        """Why an interpreter would start without a guard; '' when it would not, or is none."""
        name = program.rpartition("/")[2]
        if name.startswith(("python", "pypy")):
            for word in words[1:]:
                if word[:1] != "-" or word == "-":
                    break
                if word[:2] == "--":
                    continue
                options = word[1:].partition("c")[0].partition("m")[0].partition("W")[0].partition("X")[0]
                if [letter for letter in options if letter in _UNGUARDED]:
                    return f"{word} would start it without the guard"
                if options != word[1:]:
                    break
        elif name not in ("node", "nodejs"):
            return ""
        if env is None:
            # What this process hands on by itself was kept as it is: see `on_environment`.
            return ""
        given = _environment(env)
        for key, value in self._inherited.items():
            if key == (b"NODE_OPTIONS" if name[:1] == "p" else b"PYTHONPATH"):
                continue
            if not _keeps(key, value, given.get(key, b"")):
                return f"its environment lacks {key.decode()} as the guard needs it"
        return ""

    def on_kill(self, pid: Any, _signal: Any) -> Any:
        """Signals may go to this process and to what it started."""
        if pid in (0, getpid()) or self._is_mine(pid):
            return None
        if pid > 1 and not self._parent_of(pid) and pid != getppid():
            # It has ended, or this system does not say whose it is.
            return None
        return self._effects.deny("kill", str(pid))

    def _is_mine(self, pid: Any) -> bool:
        """Whether a process descends from this one."""
        at = pid if type(pid) is int else 0
        for _ in range(64):
            if at <= 1:
                return False
            at = self._parent_of(at)
            if at == getpid():
                return True
        return False

    def _parent_of(self, pid: int) -> int:
        """The parent of a process; 0 when there is none to be seen."""
        try:
            return int(self._read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    def on_environment(self, key: Any, value: Any = None) -> Any:
        """What a guarded child needs stays as it is."""
        name = _bytes(key)
        wanted = self._inherited.get(name)
        if wanted is None:
            return None
        if type(value) is bytes and _keeps(name, wanted, value):
            return None
        return self._effects.deny("env", name.decode(_ENCODING, "replace"))


def _environment(env: Any) -> dict[bytes, bytes]:
    """The variables of a mapping, or of a list of `K=V`; none of what is neither."""
    if type(env) not in (dict, list, tuple):
        # `os.environ`: what lies below its methods.
        env = getattr(env, "_data", {})
    if type(env) is dict:
        return {_bytes(key): _bytes(value) for key, value in env.items()}
    return {key: value for key, _, value in [_bytes(entry).partition(b"=") for entry in _items(env)]}


def _items(values: Any) -> Any:
    """The elements that C code sees, whatever a subclass says of itself."""
    kind = type(values)
    if kind is list or kind is tuple:
        return values
    if issubclass(kind, list):
        return list.__getitem__(values, slice(None))
    return tuple.__getitem__(values, slice(None)) if issubclass(kind, tuple) else ()


def _bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    return str.encode(value, _ENCODING, "surrogateescape") if issubclass(type(value), str) else b""


def _search_path(env: Any) -> Any:
    if env is None:
        return environ.get(b"PATH", b"").decode(_ENCODING, "surrogateescape").split(":") or _DEFAULT_PATH.split(":")
    return _environment(env).get(b"PATH", _DEFAULT_PATH.encode()).decode(_ENCODING, "surrogateescape").split(":")


def _keeps(key: bytes, wanted: bytes, value: bytes) -> bool:
    """Whether a value still loads the guard: first on the path, or somewhere among the options."""
    if key == b"PYTHONPATH":
        return value.split(b":")[0] == wanted.split(b":")[0]
    return wanted in value if key == b"NODE_OPTIONS" else wanted == value
