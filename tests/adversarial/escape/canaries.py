# SPDX-License-Identifier: MIT
"""Things on the host that a guest must not reach, each made so that only the box stands before it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_IPC_CREAT, _IPC_RMID = 0o1000, 0


@dataclass
class Canaries:
    """`secret` is in the file, the shared memory and the victim's environment; `touched` says what was reached."""

    directory: Path
    secret: str
    uid: int
    sockets: dict[str, socket.socket] = field(default_factory=dict)
    shm_key: int = 0
    victim: int = 0

    @property
    def known(self) -> dict[str, object]:
        """What the attacks are told, so that they need not search."""
        return {
            "canary": str(self.directory / "secret.txt"),
            "canary_directory": str(self.directory),
            "secret": self.secret,
            "tcp_port": self.sockets["TCP listener"].getsockname()[1],
            "tcp6_port": self.sockets["IPv6 listener"].getsockname()[1] if "IPv6 listener" in self.sockets else 0,
            "udp_port": self.sockets["UDP socket"].getsockname()[1],
            "abstract": self.abstract,
            "unix_path": str(self.directory / "service.sock"),
            "shm_file": self.shm_file.name,
            "shm_key": self.shm_key,
            "victim": self.victim,
            "victim_mark": self.mark,
        }

    @property
    def mark(self) -> str:
        return f"victim-{self.secret}"

    @property
    def abstract(self) -> str:
        return f"service-{self.secret}"

    @property
    def shm_file(self) -> Path:
        return Path(f"/dev/shm/canary-{self.secret}")

    def touched(self) -> list[str]:
        """Canaries that are not as they were left."""
        reached = []
        for name, sock in self.sockets.items():
            with contextlib.suppress(BlockingIOError):
                if sock.type == socket.SOCK_DGRAM:
                    sock.recv(1)
                else:
                    sock.accept()[0].close()
                reached.append(name)
        if self.text() != f"{self.secret}\n" or sorted(os.listdir(self.directory)) != ["secret.txt", "service.sock"]:
            reached.append("directory of the host")
        if self.shm_file.read_text() != self.secret:
            reached.append("shared memory file")
        with open(f"/proc/{self.victim}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[0] not in "SR":
                reached.append("process of the host")
        return reached

    def text(self) -> str:
        return (self.directory / "secret.txt").read_text()


@contextlib.contextmanager
def canaries(uid: int) -> Iterator[Canaries]:
    """All of them, made for one server; the victim process runs as `uid`, the server's user."""
    with contextlib.ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="agentbox-canary-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        directory.chmod(0o777)
        made = Canaries(directory, f"CANARY-{secrets.token_hex(8)}", uid)
        file = directory / "secret.txt"
        file.write_text(f"{made.secret}\n")
        file.chmod(0o666)
        made.shm_file.write_text(made.secret)
        made.shm_file.chmod(0o666)
        stack.callback(made.shm_file.unlink, missing_ok=True)
        _listen(made, stack)
        (directory / "service.sock").chmod(0o777)
        libc = ctypes.CDLL(None, use_errno=True)
        made.shm_key = secrets.randbelow(1 << 30) + 1
        segment = libc.shmget(made.shm_key, 4096, _IPC_CREAT | 0o666)
        if segment >= 0:
            stack.callback(libc.shmctl, segment, _IPC_RMID, None)
        made.victim = _start_victim(made, stack)
        yield made


def _listen(made: Canaries, stack: contextlib.ExitStack) -> None:
    plans: list[tuple[str, int, int, object]] = [
        ("TCP listener", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        ("IPv6 listener", socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
        ("UDP socket", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        ("abstract socket", socket.AF_UNIX, socket.SOCK_STREAM, "\0" + made.abstract),
        ("named socket", socket.AF_UNIX, socket.SOCK_STREAM, str(made.directory / "service.sock")),
    ]
    for name, family, kind, address in plans:
        sock = stack.enter_context(socket.socket(family, kind))
        try:
            sock.bind(address)  # type: ignore[arg-type]
        except OSError:
            if family != socket.AF_INET6:
                raise
            continue
        if kind == socket.SOCK_STREAM:
            sock.listen(8)
        sock.setblocking(False)
        made.sockets[name] = sock


def _start_victim(made: Canaries, stack: contextlib.ExitStack) -> int:
    command = ["sh", "-c", "read -r never", made.mark]
    if os.geteuid() == 0 and made.uid != 0:
        command = ["setpriv", f"--reuid={made.uid}", f"--regid={made.uid}", "--clear-groups", "--", *command]
    victim = subprocess.Popen(
        command, stdin=subprocess.PIPE, env={"PATH": os.defpath, "MY_SECRET": made.secret}, cwd="/"
    )
    assert victim.stdin is not None

    def end() -> None:
        victim.kill()
        victim.wait()

    stack.callback(end)
    return victim.pid
