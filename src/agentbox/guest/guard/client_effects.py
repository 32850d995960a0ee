# SPDX-License-Identifier: MIT
"""What stands behind `agentbox.client`: each function is one effect, recorded with its result, errors included.

What an effect does inside itself is judged and observed like anything else, in a lane that no replay looks at. In a
replay nothing of it happens: the host gives the result that was recorded. Only a file that was written is written once
more, into the scratch copy that stands in for the project.
"""

from __future__ import annotations

import posix
from posix import urandom
from time import monotonic, time

from .channel import scan, text_of
from .effects import Effects
from .net_answers import parse_address
from .redaction import headers as redacted_headers
from .redaction import url as redacted_url
from .seal import sealed
from .told import told
from .web import NoConnection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WHAT = "agentbox.client"
_READ_BYTES = 1 << 20
_MAX_TEXT_BYTES = 64 << 20
_ANY_MODE, _ANY_DIRECTORY_MODE = 0o666, 0o777
_SIGKILL = 9
# Results of an effect that may be large, and so are handed over before their record.
_LARGE = ("body", "stdout", "stderr")


@sealed
class ClientEffects:
    """The functions by their names. `services` opens and writes files as the program itself would."""

    def __init__(
        self, effects: Effects, answers: Any, files: Any, services: Any, large: Any, web: Any, sha256: Any
    ) -> None:
        self._effects = effects
        self._answers = answers
        self._files = files
        self._services = services
        self._large = large
        self._web = web(self._may_connect, lambda address: effects.deny("net", address))
        self._sha256 = sha256
        # In a replay, by lane: effects that were served before they were asked for, the next one last.
        self._ahead: dict[str, list[Any]] = {}
        self._functions: dict[str, Any] = {
            "read_text": self.read_text,
            "write_text": self.write_text,
            "get": self.get,
            "run": self.run,
            "now": lambda: self._happens("clock.now", {}, time, float),
            "random": lambda: self._happens("rand.random", {}, _random, float),
        }

    def call(self, name: Any, *arguments: Any) -> Any:
        """One call: (False, result), or (True, what is told of its error)."""
        return self._functions[name](*arguments)

    def read_text(self, path: Any) -> Any:
        """The text of a file."""
        name = self._text(path)
        return self._happens("fs.read_text", {"path": name}, lambda: self._read(name), str)

    def write_text(self, path: Any, text: Any) -> Any:
        """Write a file; directories on the way are made."""
        name = self._text(path)
        if not isinstance(text, str):
            raise TypeError(f"{_WHAT}.write_text writes text, not {type(text).__name__}")
        data = str.encode(text, "utf-8")
        args = {"path": name, "sha256": self._sha256(data).hexdigest()}
        return self._happens("fs.write_text", args, lambda: self._write(name, data), _bytes_count, again=True)

    def get(self, url: Any, headers: Any, method: Any, body: Any, timeout_seconds: Any) -> Any:
        """Ask a web server."""
        if not isinstance(url, str) or not isinstance(method, str):
            raise TypeError(f"{_WHAT}.get takes an address and a method as text")
        url, method = str.__str__(url), str.__str__(method)
        seconds = _seconds(timeout_seconds)
        if seconds is None:
            raise ValueError(f"{_WHAT}.get needs a timeout")
        given = {str(name): str(value) for name, value in dict(headers or {}).items()}
        data = _bytes(body)
        args: dict[str, Any] = {"url": redacted_url(url)}
        if method != "GET":
            args["method"] = method
        if given:
            args["headers"] = redacted_headers(given)
        if data is not None:
            args["body_sha256"] = self._sha256(data).hexdigest()
        if seconds != 30:
            args["timeout_seconds"] = seconds
        return self._happens("net.get", args, lambda: self._fetch(url, method, given, data, seconds), _page)

    def run(self, argv: Any, timeout_seconds: Any, stdin: Any) -> Any:
        """Run a program to its end."""
        if isinstance(argv, (str, bytes)):
            raise TypeError(f"{_WHAT}.run takes a list of words, as ['git', 'status']")
        words = [self._text(word) for word in argv]
        if not words:
            raise ValueError(f"{_WHAT}.run needs a program to run")
        seconds = _seconds(timeout_seconds)
        data = _bytes(stdin)
        args: dict[str, Any] = {"argv": words}
        if seconds is not None:
            args["timeout_seconds"] = seconds
        if data is not None:
            args["stdin_sha256"] = self._sha256(data).hexdigest()
        return self._happens("proc.run", args, lambda: self._run(words, seconds, data), _done)

    def _happens(self, op: str, args: Any, act: Any, shape: Any, again: bool = False) -> Any:
        """Do an effect and record it; or get what was recorded, and `shape` it as it was then. `again`: it is done in
        a replay too."""
        args_text = text_of(args)
        if self._effects.replay:
            served = self._served(op, args_text, shape)
            if again and not served[0]:
                self._inside(act)
            return served
        failed, found, error = self._inside(act)
        if failed and found is None:
            raise error
        self._effects.record(op, args_text, text_of(self._recorded(failed, found)))
        return failed, found

    def _inside(self, act: Any) -> Any:
        lanes = self._effects.lanes
        lanes.enter_effect()
        try:
            return False, act(), None
        except _Told as error:
            return True, error.spec, None
        except BaseException as error:
            error.__traceback__ = error.__context__ = error.__cause__ = None
            return True, told(error), error
        finally:
            lanes.leave_effect()

    def _recorded(self, failed: bool, found: Any) -> Any:
        """The result as it is recorded: what is large beside it."""
        large = self._large
        if type(found) is str:
            return large.of_text(found)
        if type(found) is not dict:
            return found
        kept = {}
        for name in _LARGE:
            value = found.get(name)
            if value is not None:
                kept[name] = large.of_text(value) if type(value) is str else large.of_bytes(value)
        rest = {name: value for name, value in found.items() if name not in kept}
        return {"error": rest, **kept} if failed else {**rest, **kept}

    def _served(self, op: str, args_text: str, shape: Any) -> Any:
        result = self._result(op, args_text)
        if type(result) is dict:
            spec = result.get("error")
            found = dict(spec if type(spec) is dict else result)
            for name in _LARGE:
                value = result.get(name)
                if value is not None:
                    # Bytes were told as bytes, text as text.
                    is_text = type(value) is str or (type(spec) is not dict and shape is not str)
                    found[name] = self._large.text_of(value) if is_text else self._large.bytes_of(value)
                    if found[name] is None:
                        raise self._effects.diverged(f"what {op} gave was too large to be kept")
            if type(spec) is dict:
                if type(found.get("bytes")) is dict:
                    found["bytes"] = self._large.bytes_of(found["bytes"])
                return True, found
            if shape is not str:
                return False, shape(found)
        if shape is str:
            text = self._large.text_of(result)
            if text is None:
                raise self._effects.diverged(f"what {op} gave was too large to be kept")
            return False, text
        return False, shape(result)

    def _result(self, op: str, args_text: str) -> Any:
        """What was recorded of the effect that comes next."""
        lane = self._effects.lanes.current()
        ahead = self._ahead.get(lane)
        if ahead:
            known, args, result = ahead.pop()
            if known == op and args == scan(args_text, 0)[0]:
                self._effects.again(op, args_text)
                return result
        refused, answer = self._effects.ask("effect", op, args_text)
        if refused is not None:
            raise refused
        self._ahead[lane] = (answer.get("ahead") or [])[::-1]
        return answer.get("result")

    def _text(self, given: Any) -> str:
        """The text of a path or a word, asked for once: whatever it says later, this is what is judged and used."""
        text = (
            self._files.text(given) if hasattr(type(given), "__fspath__") or isinstance(given, (str, bytes)) else None
        )
        if text is None:
            raise TypeError(f"{_WHAT} takes text or a path, not {type(given).__name__}")
        return str(text)

    def _read(self, name: str) -> str:
        descriptor = self._services.open(name, posix.O_RDONLY | posix.O_CLOEXEC, _ANY_MODE, None)
        try:
            pieces: list[bytes] = []
            size = 0
            while True:
                piece = posix.read(descriptor, _READ_BYTES)
                if not piece:
                    break
                pieces.append(piece)
                size += len(piece)
                if size > _MAX_TEXT_BYTES:
                    raise ValueError(f"{_WHAT}.read_text: {name} is larger than {_MAX_TEXT_BYTES >> 20} MiB")
        except IsADirectoryError as error:
            raise IsADirectoryError(error.errno, error.strerror, name) from None
        finally:
            posix.close(descriptor)
        return b"".join(pieces).decode("utf-8")

    def _write(self, name: str, data: bytes) -> Any:
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC | posix.O_CLOEXEC
        parent = name.rpartition("/")[0]
        try:
            descriptor = self._services.open(name, flags, _ANY_MODE, None)
        except FileNotFoundError:
            if not parent:
                raise
            self._make(parent)
            descriptor = self._services.open(name, flags, _ANY_MODE, None)
        try:
            self._services.before_write(descriptor, len(data))
            at = 0
            while at < len(data):
                at += posix.write(descriptor, data[at : at + _READ_BYTES])
        finally:
            posix.close(descriptor)
        return {"bytes": len(data)}

    def _make(self, directory: str) -> None:
        try:
            posix.stat(directory)
            return
        except FileNotFoundError:
            parent = directory.rpartition("/")[0]
        if parent:
            self._make(parent)
        try:
            posix.mkdir(directory, _ANY_DIRECTORY_MODE)
        except FileExistsError:
            return

    def _may_connect(self, host: str, port: int) -> Any:
        effects = self._effects
        address = parse_address(host)
        if effects.strict or (address is not None and not _is_loopback(address)):
            # The connection itself is judged.
            return None
        if self._answers.connect(host, port, None, monotonic())[0]:
            return None
        return effects.deny("net", f"{host}:{port}" if self._answers.resolve(host)[0] else host)

    def _fetch(self, url: str, method: str, headers: Any, data: Any, seconds: float) -> Any:
        try:
            status, reason, received, body, address = self._web.fetch(url, method, headers, data, seconds)
        except NoConnection as error:
            spec = {"type": "URLError", "message": str(error)}
            if error.cause is not None:
                spec["cause"] = told(error.cause)
            raise _Told(spec) from None
        if status >= 300:
            raise _Told(
                {
                    "type": "HTTPError",
                    "message": f"HTTP Error {status}: {reason}",
                    "url": redacted_url(address),
                    "code": status,
                    "reason": reason,
                    "headers": [[name, value] for name, value in _hidden(received)],
                    "body": body,
                }
            )
        return _page(
            {"status": status, "body": body.decode("utf-8", "replace"), "sha256": self._sha256(body).hexdigest()}
        )

    def _run(self, words: Any, seconds: Any, data: Any) -> Any:
        import subprocess

        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL if data is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(data, seconds)
        except subprocess.TimeoutExpired:
            _kill(process)
            out, err = process.communicate()
            raise _Told(
                {
                    "type": "TimeoutExpired",
                    "message": f"{words[0]} was ended after {seconds:g} s",
                    "argv": words,
                    "timeout_seconds": seconds,
                    "stdout": out,
                    "stderr": err,
                }
            ) from None
        except BaseException:
            _kill(process)
            process.wait()
            raise
        return _done(
            {
                "code": process.returncode,
                "stdout": out.decode("utf-8", "replace"),
                "stderr": err.decode("utf-8", "replace"),
            }
        )


class _Told(Exception):  # noqa: N818
    """An error that is told by hand."""

    def __init__(self, spec: Any) -> None:
        super().__init__(spec["message"])
        self.spec = spec


def _hidden(received: Any) -> Any:
    """Headers of an answer, secrets hidden: a session's cookie is one."""
    return [(name, redacted_headers({name: value})[name]) for name, value in received]


def _random() -> float:
    return (int.from_bytes(urandom(7), "big") >> 3) / (1 << 53)


def _page(found: Any) -> Any:
    return {"status": found["status"], "body": found["body"], "sha256": found["sha256"]}


def _done(found: Any) -> Any:
    return {"code": found["code"], "stdout": found["stdout"], "stderr": found["stderr"]}


def _bytes_count(found: Any) -> Any:
    return {"bytes": found["bytes"]}


def _seconds(given: Any) -> Any:
    if given is None:
        return None
    seconds = float(given)
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{_WHAT}: timeout_seconds is a number above 0, not {given!r}")
    return int(seconds) if seconds == int(seconds) else seconds


def _bytes(given: Any) -> Any:
    if given is None:
        return None
    if isinstance(given, str):
        return str.encode(given, "utf-8")
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)
    raise TypeError(f"{_WHAT} takes text or bytes here, not {type(given).__name__}")


def _kill(process: Any) -> None:
    try:
        posix.killpg(process.pid, _SIGKILL)
    except OSError:
        return


def _is_loopback(address: Any) -> bool:
    return bool(address == (6, 1) or (address[0] == 4 and address[1] >> 24 == 127))
