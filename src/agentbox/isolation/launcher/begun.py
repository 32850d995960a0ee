# SPDX-License-Identifier: MIT
"""A box that is built before its plan is there, as far as every plan goes: namespaces, an init, a root with what all
boxes have. Building the rest then takes half the time.

Three processes take part. The launcher, which may be root, opens what the host lends. The judge, which has left the
host's namespaces by then, waits for the launcher to say what it judges. The init, in its unfinished root, attaches what
the launcher hands it. Each of the two gets its orders on a socket of its own, and ends when the launcher does.
"""

from __future__ import annotations

import os

from agentbox.isolation.launcher import box, root, wire
from agentbox.isolation.launcher.steps import StepError, step
from agentbox.light import contextlib, signal, socket
from agentbox.linux import namespaces, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# An ordinary user's init opens what the host lends by itself, also when it has covered this, which no plan shows.
_STAGE = "/sys"
_JOINED = b"j"
_JUDGED = (
    *("workspace", "staged", "exec_rules", "command", "writable", "lent", "parts", "grants"),
    *("witness_all", "checkpoint"),
)


class Begun:
    """The launcher's side. `skeleton` is a plan of which only what every plan has is said; `owner` the uid that most
    likely owns what the plan will lend."""

    def __init__(self, skeleton: dict[str, Any], owner: int) -> None:
        self.skeleton = skeleton
        self._owner = owner
        self._opens = process.has_capability(process.CAP_SYS_ADMIN)
        self._judge, self._judge_end = socket.socketpair()
        self._init, self._init_end = socket.socketpair()
        self._maps: dict[int, int] = {}

    def lend(self) -> None:
        """Hand over what the skeleton shows of the host, when the box's process is forked. Does not raise."""
        self._judge_end.close()
        self._init_end.close()
        with self._told():
            if self._opens:
                with step("open mounts"):
                    trees = root.open_trees({**self.skeleton, "grants": ()})
                self._send(trees)
            wire.send(self._init, {"skeleton": self._opens})
        host_uid = self.skeleton["host_uid"]
        if self._opens and os.geteuid() == 0 and host_uid != 0:
            # What is wrong with it is said of the path that needs it.
            with contextlib.suppress(OSError):
                self._maps[self._owner] = namespaces.mapping_namespace(self._owner, host_uid)

    def complete(self, plan: dict[str, Any], descriptors: list[int]) -> None:
        """Hand over the plan, and to the judge its descriptors. Does not raise: the init tells what is wrong."""
        with contextlib.suppress(OSError):
            wire.send(self._judge, {"judge": {name: plan[name] for name in _JUDGED}}, descriptors)
        with self._told():
            if self._opens:
                with step("open mounts"):
                    trees = root.open_trees(rest_of(plan, self.skeleton), self._maps)
                self._send(trees)
            wire.send(self._init, {"plan": plan})
        self.close()

    def close(self) -> None:
        """Nothing more is said; a box whose plan did not come ends."""
        for sock in (self._judge, self._init):
            sock.close()

    def _send(self, trees: dict[str, int]) -> None:
        targets = list(trees)
        for begin in range(0, len(targets), wire.MAX_DESCRIPTORS):
            some = targets[begin : begin + wire.MAX_DESCRIPTORS]
            wire.send(self._init, {"trees": some}, [trees[target] for target in some])
        for fd in trees.values():
            os.close(fd)

    @contextlib.contextmanager
    def _told(self) -> Any:
        """Let the init tell the owner of a step that failed here. It may be gone already."""
        try:
            yield
        except StepError as error:
            with contextlib.suppress(OSError):
                wire.send(self._init, {"step": error.step, "errno": error.errno, "text": error.text})
        except OSError:
            pass

    def live(self, sock: socket.socket, cgroups: list[int]) -> None:
        """The life of the box's process, which becomes the judge, and of its init. Returns in neither of them, or in
        the init when the box is to end. Raises StepError."""
        self.close()
        box.unshare(self.skeleton, network=True, cgroups=False)
        pid, proc, ours, theirs = box.fork_init()
        if pid != 0:
            self._init_end.close()
            theirs.close()
            wire.send(sock, {"forked": pid}, [os.pidfd_open(pid)])
            # The init builds meanwhile; it starts nothing before it is told.
            box.join(cgroups)
            ours.sendall(_JOINED)
            self._watch(pid, proc, ours)
        os.close(proc)
        ours.close()
        self._judge_end.close()
        self._finish(sock, theirs, cgroups)

    def _watch(self, pid: int, proc: int, init: socket.socket) -> None:
        """The judge's life; never returns."""
        try:
            taken = _Orders(self._judge_end).take()
            if taken is not None:
                message, (verdicts,) = taken
                box.watch(message["judge"], pid, proc, init, socket.socket(fileno=verdicts))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os._exit(0)

    def _finish(self, sock: socket.socket, judge_end: socket.socket, cgroups: list[int]) -> None:
        """The init's life."""
        orders = _Orders(self._init_end)
        root.begin(self.skeleton, _STAGE)
        opened, trees = orders.until("skeleton")
        if not opened:
            with step("open mounts"):
                trees = root.open_trees({**self.skeleton, "grants": ()})
        root.fill(self.skeleton, trees)
        root.own_filesystems(self.skeleton)
        plan, trees = orders.until("plan")
        self._init_end.close()
        if judge_end.recv(len(_JOINED)) != _JOINED:
            os._exit(0)
        # By itself: who joins another process waits for the whole machine.
        box.join(cgroups)
        with step("unshare"):
            namespaces.unshare(namespaces.CLONE_NEWCGROUP)
        rest = rest_of(plan, self.skeleton)
        if not opened:
            with step("open mounts"):
                trees = root.open_trees(rest)
        if any(plan[name] != self.skeleton[name] for name in ("disk_bytes", "inodes")):
            root.resize(plan)
        root.open_writable(plan)
        root.fill(rest, trees)
        root.hide(plan)
        box.finish(plan, root.complete(plan, sock), sock, judge_end)


class _Orders:
    """What comes from the launcher."""

    def __init__(self, sock: socket.socket) -> None:
        self._receiver = wire.Receiver(sock)

    def take(self) -> tuple[dict[str, Any], list[int]] | None:
        """The next message and its descriptors; None when the launcher is gone or wants no box."""
        while (taken := self._receiver.take()) is None:
            if not self._receiver.fill():
                return None
        return taken

    def until(self, name: str) -> tuple[Any, dict[str, int]]:
        """What the message of that name says, and the mounts that came before it. Raises StepError."""
        trees: dict[str, int] = {}
        while (taken := self.take()) is not None:
            message, descriptors = taken
            if "step" in message:
                error = StepError(message["step"], OSError(message["errno"], ""))
                error.text = message["text"]
                raise error
            if name in message:
                return message[name], trees
            trees.update(zip(message["trees"], descriptors, strict=True))
        os._exit(0)


def rest_of(plan: dict[str, Any], skeleton: dict[str, Any]) -> dict[str, Any]:
    """What a plan has beyond its skeleton, with which its lists begin."""
    return {
        **plan,
        "binds": plan["binds"][len(skeleton["binds"]) :],
        "files": plan["files"][len(skeleton["files"]) :],
        "links": (),
        "devices": (),
    }
