# SPDX-License-Identifier: MIT
"""The control socket of a running gVisor: one JSON object asks, one answers; descriptors come beside the question.

What `runsc exec` says, said directly: that program alone takes longer to start than what it starts. The form is that of
runsc's releases of 2022 and 2023; another one answers with an error, and the self-check of the backend says so.
"""

from __future__ import annotations

import errno

from agentbox.light import jsons, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

ANSWER_SECONDS = 20
_ANSWER_BYTES = 1 << 16
_NO_CAPABILITIES = dict.fromkeys(
    ("PermittedCaps", "InheritableCaps", "EffectiveCaps", "BoundingCaps", "AmbientCaps"), 0
)
_KILL = 1 << 5
_REASONS = (
    ("no such file or directory", errno.ENOENT),
    ("permission denied", errno.EACCES),
    ("exec format error", errno.ENOEXEC),
    ("not a directory", errno.ENOTDIR),
    ("is a directory", errno.EACCES),
    ("too many levels", errno.ELOOP),
    ("file name too long", errno.ENAMETOOLONG),
    ("argument list too long", errno.E2BIG),
    ("resource temporarily unavailable", errno.EAGAIN),
    ("cannot allocate memory", errno.ENOMEM),
)


class Sentry:
    """Questions to the gVisor of one box, which answers at `name` in this process's network namespace."""

    def __init__(self, name: str) -> None:
        self._name = name
        # The name ends with a NUL too, which counts in an abstract address.
        self._address = f"\0runsc-sandbox.{name}\0".encode()

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        descriptors: Sequence[int],
        *,
        uid: int,
        gid: int,
        terminal: bool = False,
        capabilities: int = 0,
    ) -> int:
        """Start a program as the leader of a session of its own; its pid inside. Raises OSError."""
        held = {**_NO_CAPABILITIES, "PermittedCaps": capabilities, "EffectiveCaps": capabilities}
        held["BoundingCaps"] = capabilities
        asked = {
            "filename": "",
            "argv": list(argv),
            "envv": [f"{name}={value}" for name, value in env.items()],
            "MountNamespace": None,
            "wd": cwd,
            "KUID": uid,
            "KGID": gid,
            "ExtraKGIDs": [],
            "Capabilities": held,
            "StdioIsPty": terminal,
            "ContainerID": self._name,
            "PIDNamespace": None,
            "Limits": None,
        }
        return int(self._ask("ExecuteAsync", asked, descriptors))

    def run_own(self, argv: Sequence[str], nothing: int) -> int:
        """Start a program of ours as the box's root, which may signal everybody, without input or output."""
        return self.start(argv, {}, "/", (nothing, nothing, nothing), uid=0, gid=0, capabilities=_KILL)

    def waiting_for(self, pid: int) -> socket.socket:
        """A socket that becomes readable when the program has ended; `status_from` reads it. Raises OSError."""
        sock = self._connected()
        sock.sendall(_question("WaitPID", {"PID": pid, "CID": self._name}))
        return sock

    def wait(self, pid: int) -> int | None:
        """The wait(2) status of a program, when it has ended; None when gVisor ended first. Raises OSError."""
        with self.waiting_for(pid) as sock:
            return status_from(sock)

    def signal(self, pid: int, number: int, *, foreground: bool) -> None:
        """Send a signal to a process, or to the foreground group of the terminal that it leads. Raises OSError."""
        self._ask("Signal", {"CID": self._name, "Signo": number, "PID": pid, "Mode": 2 if foreground else 0})

    def trace(self, points: Sequence[Mapping[str, Any]], descriptor: int) -> None:
        """Have gVisor report these points of its trace to a socket. Raises OSError."""
        sink = {"name": "remote", "config": {"endpoint": "agentbox"}, "status": {"DroppedCount": 0}}
        session = {"name": "Default", "points": list(points), "sinks": [sink]}
        self._ask("CreateTraceSession", {"Config": session, "Force": False}, (descriptor,))

    def _connected(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(ANSWER_SECONDS)
            sock.connect(self._address)
        except BaseException:
            sock.close()
            raise
        return sock

    def _ask(self, method: str, argument: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Any:
        question = _question(method, argument)
        with self._connected() as sock:
            sent = socket.send_fds(sock, [question], list(descriptors)) if descriptors else sock.send(question)
            sock.sendall(question[sent:])
            answer = _answer(sock)
        if answer is None:
            raise OSError(errno.ESRCH, "gVisor has ended")
        if not answer["success"]:
            raise OSError(_errno_of(answer["err"]), answer["err"])
        return answer["result"]


def status_from(sock: socket.socket) -> int | None:
    """The answer that `waiting_for` waits for: a wait(2) status, None when gVisor ended first."""
    try:
        answer = _answer(sock)
    except OSError:
        return None
    return int(answer["result"]) if answer is not None and answer["success"] else None


def _question(method: str, argument: Mapping[str, Any]) -> bytes:
    text = jsons.dumps({"method": f"containerManager.{method}", "arg": argument})
    if "\\udc" in text:
        raise OSError(errno.EILSEQ, "gVisor takes words and variables in UTF-8 only")
    return text.encode()


def _answer(sock: socket.socket) -> dict[str, Any] | None:
    """The one object that the other end says; None when it ends first."""
    text = b""
    while len(text) < _ANSWER_BYTES:
        piece = sock.recv(4096)
        if not piece:
            return None
        text += piece
        if text.endswith((b"}", b"}\n")):
            try:
                found: dict[str, Any] = jsons.loads(text)
            except ValueError:
                continue
            return found
    raise OSError(errno.EMSGSIZE, "gVisor's answer does not end")


def _errno_of(text: str) -> int:
    return next((number for reason, number in _REASONS if reason in text.lower()), errno.EINVAL)
