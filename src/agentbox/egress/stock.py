# SPDX-License-Identifier: MIT
"""Attachments in stock: made before they are needed, each handed out once, none left behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbox.egress.attachment import Attachment
from agentbox.egress.maker import MAX_DESCRIPTORS, MAX_MESSAGE_BYTES
from agentbox.errors import IsolationError

DEFAULT_SIZE = 4

_TIMEOUT_SECONDS = 20
# More forks at once than cores only make each of them later.
_AT_ONCE = 4
_PORTS_A_MESSAGE = 64


@dataclass(slots=True)
class _Answer:
    holds: list[str]
    descriptors: list[int]
    notes: tuple[str, ...]

    def take(self, name: str) -> list[int]:
        return [fd for held, fd in zip(self.holds, self.descriptors, strict=True) if held == name]

    def sockets(self, name: str) -> list[socket.socket]:
        return [_non_blocking(fd) for fd in self.take(name)]


def _non_blocking(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    return sock


class _Maker:
    """The owner's side of the process that makes attachments (maker.py); started at the first request, started again
    when it dies."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: dict[int, asyncio.Future[_Answer]] = {}
        self._next_id = 0
        self._starting = asyncio.Lock()
        self._turn = asyncio.Semaphore(_AT_ONCE)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> _Answer:
        async with self._turn:
            async with self._starting:
                if self._socket is None:
                    await self._start()
            return await self._exchange(request, descriptors)

    async def _exchange(self, request: dict[str, Any], descriptors: Sequence[int]) -> _Answer:
        assert self._socket is not None
        self._next_id += 1
        key = self._next_id
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._waiting[key] = answer
        try:
            socket.send_fds(self._socket, [json.dumps({"id": key, **request}).encode()], list(descriptors))
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                _close(answer.result().descriptors)
            raise
        except TimeoutError:
            raise IsolationError(
                f"no network attachment was made in {_TIMEOUT_SECONDS} s", hint="is this host out of memory?"
            ) from None
        except OSError as error:
            self._drop()
            raise IsolationError(
                f"the process that makes network attachments is gone: {error}", hint="try again; it is restarted"
            ) from error
        finally:
            self._waiting.pop(key, None)

    async def _start(self) -> None:
        self._drop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - a spawn of some milliseconds, once
                [sys.executable, "-I", "-S", "-B", str(Path(__file__).parent / "maker.py"), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={"PATH": "/usr/bin:/bin"},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        ours.setblocking(False)
        self._socket = ours
        loop = asyncio.get_running_loop()
        first: asyncio.Future[_Answer] = loop.create_future()
        self._waiting[0] = first
        loop.add_reader(ours.fileno(), self._readable)
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                await first
        except (TimeoutError, IsolationError) as error:
            self._drop()
            raise IsolationError(
                "the process that makes network attachments did not start", hint="its own message is on stderr"
            ) from error
        except BaseException:
            self._drop()
            raise
        finally:
            self._waiting.pop(0, None)

    def _readable(self) -> None:
        assert self._socket is not None
        while True:
            try:
                data, descriptors, flags, _ = socket.recv_fds(
                    self._socket, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except OSError:
                data, descriptors, flags = b"", [], 0
            if not data:
                self._drop()
                return
            self._settle(json.loads(data), descriptors, bool(flags & socket.MSG_CTRUNC))

    def _settle(self, message: dict[str, Any], descriptors: list[int], truncated: bool) -> None:
        answer = self._waiting.get(message["id"])
        if answer is None or answer.done():
            # Whoever asked has given up.
            _close(descriptors)
        elif "error" in message:
            answer.set_exception(_explained(message))
        elif truncated or len(descriptors) != len(message["holds"]):
            _close(descriptors)
            answer.set_exception(
                IsolationError(
                    "this process may not open more files: a network attachment needs up to nine",
                    hint="raise the limit of open files (`ulimit -n`, or LimitNOFILE= of a systemd unit)",
                )
            )
        else:
            answer.set_result(_Answer(message["holds"], descriptors, tuple(message.get("notes", ()))))

    def _drop(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(
                    IsolationError(
                        "the process that makes network attachments has died", hint="try again; it is restarted"
                    )
                )
        if self._process is not None:
            # It waits for nothing but its socket, so this is soon.
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self._drop()


class AttachmentStock:
    """Attachments for the boxes of one owner.

    At most `size` wait in stock (0: each is made when it is asked for); what is taken is made again while the taker is
    already at work. An attachment is handed out once: what a box left in its namespace, no other box meets. All belong
    to one event loop.
    """

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        self._size = size
        self._ready: deque[Attachment] = deque()
        self._maker = _Maker()
        self._filling: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        """How many wait to be handed out."""
        return len(self._ready)

    @property
    def maker_pid(self) -> int | None:
        """PID of the process that makes them, None while none was needed."""
        return self._maker.pid

    async def fill(self) -> None:
        """Make what is missing in stock; returns when it is full. Raises IsolationError when this host cannot."""
        missing = self._size - len(self._ready)
        if not self._closed:
            await asyncio.gather(*(self._add_one() for _ in range(missing)))

    async def lease(self) -> Attachment:
        """An attachment that nobody had before; the caller closes it. Raises IsolationError when none can be made."""
        self._check_open()
        attachment = self._ready.popleft() if self._ready else await self._make()
        self._refill()
        return attachment

    async def fit_out(self, network: int | str, user: int | str | None = None) -> Attachment:
        """Fit out a network namespace that exists, of a container that was made without a network for instance.

        `network` is a descriptor or a path of it (/proc/PID/ns/net); `user` the same of the user namespace that has to
        be entered first, where this process is not privileged. The attachment has descriptors of its own. Raises
        IsolationError; the namespace may then be half fitted out, and is not to be used.
        """
        self._check_open()
        with contextlib.ExitStack() as opened:
            descriptors = []
            for namespace in (network, user):
                if namespace is None:
                    continue
                try:
                    descriptors.append(_opened(namespace))
                except OSError as error:
                    raise IsolationError(
                        f"the namespace {namespace} cannot be opened: {error.strerror}", hint="is its process alive?"
                    ) from error
                opened.callback(os.close, descriptors[-1])
            answer = await self._maker.ask({"do": "fit"}, descriptors)
            opened.pop_all()
            return self._attachment(answer, descriptors[0], descriptors[1] if len(descriptors) > 1 else None)

    def _check_open(self) -> None:
        if self._closed:
            raise IsolationError("the stock of network attachments is closed", hint="its owner is being shut down")

    async def _make(self) -> Attachment:
        answer = await self._maker.ask({"do": "make"})
        return self._attachment(answer, answer.take("network")[0], next(iter(answer.take("user")), None))

    def _attachment(self, answer: _Answer, network: int, user: int | None) -> Attachment:
        streams = answer.sockets("stream")
        return Attachment(
            namespace_fd=network,
            user_namespace_fd=user,
            stream_listeners=streams,
            dns_datagrams=answer.sockets("dns_datagram"),
            dns_streams=answer.sockets("dns_stream"),
            ipv6=any(sock.family == socket.AF_INET6 for sock in streams),
            notes=answer.notes,
            # Asked rarely and answered by the kernel at once: it may block.
            _netfilter=socket.socket(fileno=answer.take("netfilter")[0]),
            _open_ports=self._open_ports,
        )

    async def _open_ports(self, attachment: Attachment, ports: Iterable[int]) -> dict[int, list[socket.socket]]:
        wanted = sorted(set(ports))
        namespaces = [fd for fd in (attachment.namespace_fd, attachment.user_namespace_fd) if fd is not None]
        opened: dict[int, list[socket.socket]] = {}
        try:
            for at in range(0, len(wanted), _PORTS_A_MESSAGE):
                part = wanted[at : at + _PORTS_A_MESSAGE]
                answer = await self._maker.ask({"do": "listen", "ports": part}, namespaces)
                opened |= {port: answer.sockets(str(port)) for port in part}
        except BaseException:
            for sock in (sock for sockets in opened.values() for sock in sockets):
                sock.close()
            raise
        return opened

    def _refill(self) -> None:
        missing = self._size - len(self._ready) - len(self._filling)
        for _ in range(0 if self._closed else missing):
            task = asyncio.create_task(self._replace_one())
            self._filling.add(task)
            task.add_done_callback(self._filling.discard)

    async def _replace_one(self) -> None:
        # The next lease meets the same error, and its caller is told.
        with contextlib.suppress(IsolationError):
            await self._add_one()

    async def _add_one(self) -> None:
        attachment = await self._make()
        if self._closed or len(self._ready) >= self._size:
            attachment.close()
        else:
            self._ready.append(attachment)

    async def close(self) -> None:
        """End the maker and close what is in stock; what was handed out belongs to who has it. May be called twice."""
        self._closed = True
        for task in self._filling:
            task.cancel()
        await asyncio.gather(*self._filling, return_exceptions=True)
        self._maker.close()
        while self._ready:
            self._ready.popleft().close()


def _opened(namespace: int | str) -> int:
    return os.open(namespace, os.O_RDONLY | os.O_CLOEXEC) if isinstance(namespace, str) else os.dup(namespace)


def _close(descriptors: Iterable[int]) -> None:
    for fd in descriptors:
        os.close(fd)


_MISSING = (errno.ENOENT, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT)


def _explained(message: dict[str, Any]) -> IsolationError:
    step, code = message["step"], message["errno"]
    hint = "please report this with the output of `agentbox doctor`"
    if step == "network namespace" and code in (errno.EPERM, errno.EACCES):
        hint = "allow user namespaces for this user (`agentbox doctor` says how), or run as root"
    elif step == "network namespace" and code == errno.ENOSPC:
        hint = "raise user.max_net_namespaces and user.max_user_namespaces with sysctl"
    elif code in _MISSING and "nftables" in message["error"]:
        hint = "the kernel needs nf_tables with NAT: `modprobe -a nf_tables nft_chain_nat nft_ct`"
    elif step == "listen" and code == errno.EADDRINUSE:
        hint = "the box uses that port of its loopback already; forward another"
    return IsolationError(f"no network attachment: {step}: {message['error']}", hint=hint, step=step, errno=code)
