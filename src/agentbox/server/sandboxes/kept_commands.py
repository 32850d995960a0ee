# SPDX-License-Identifier: MIT
"""Commands of one sandbox as the API knows them: by id, in the journal, with their output, also from a dead keeper."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Iterator
from typing import Any

from agentbox.errors import NotFoundError
from agentbox.sandbox.command import Command
from agentbox.server.sandboxes.journal import Journal
from agentbox.server.sandboxes.kept_spool import KeptSpool

KEPT_COMMANDS = 64
KEPT_BYTES = 256 << 20
# Ended commands above that, so that most beginnings forget nothing.
_SPARE_COMMANDS = 16
# A command that is waited for is written down once, when it has ended, unless it takes longer.
_WRITE_AFTER_SECONDS = 0.05
_CLOSING_SECONDS = 0.005
_LOST_EXIT_CODE = 137
_SIGKILL = 9
_log = logging.getLogger("agentbox.server")


class KeptCommand:
    """One command. `command` is None when a keeper before this one ran it."""

    def __init__(self, facts: dict[str, Any], number: int, command: Command | None) -> None:
        self.facts = facts
        self.number = number
        self.command = command
        # How many calls wait for its end; each answers before it is written down.
        self.answering = 0
        # Who writes it down, once it has begun here.
        self.history: KeptCommands | None = None
        self.stdout: KeptSpool
        self.stderr: KeptSpool | None
        if command is not None:
            assert isinstance(command.stdout, KeptSpool)
            assert command.stderr is None or isinstance(command.stderr, KeptSpool)
            self.stdout, self.stderr = command.stdout, command.stderr
        else:
            self.stdout = KeptSpool.found(facts["stdout"])
            self.stderr = KeptSpool.found(facts["stderr"]) if facts["stderr"] else None

    @property
    def id(self) -> str:
        """Its id of the API."""
        return str(self.facts["id"])

    @property
    def running(self) -> bool:
        """Whether its process has not ended."""
        return self.command is not None and self.command.running

    @property
    def over(self) -> bool:
        """Whether nothing that it started runs any more."""
        return self.command is None or self.command.over

    async def wait(self, seconds: float | None) -> bool:
        """Wait until it has ended; whether it has."""
        return self.command is None or await self.command.wait(seconds)

    async def more(self, offset: int, *, error: bool) -> None:
        """Wait until a stream is longer than `offset`, or will never be."""
        if self.command is not None:
            await self.command.more(offset, error=error)

    async def wait_for_answer(self, seconds: float | None) -> None:
        """Wait until all that its answer may say is known: it has ended, and as a rule nobody holds its output."""
        command = self.command
        if command is not None and await command.wait(seconds) and not command.output_closed:
            # The two come one after the other. What it left running may hold its output for ever.
            await command.wait_closed(_CLOSING_SECONDS)

    @property
    def spools(self) -> tuple[KeptSpool, ...]:
        """What is kept of its output."""
        return (self.stdout,) if self.stderr is None else (self.stdout, self.stderr)

    @property
    def closed(self) -> bool:
        """Whether nothing more will come from it."""
        return self.command is None or self.command.output_closed

    def body(self) -> dict[str, Any]:
        """JSON of the command, which is written down first as it is now."""
        if self.history is not None:
            self.history.settle_now(self)
            self.history.settle_end(self)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """As `body`, for who waits with `answering`."""
        command, facts = self.command, self.facts
        if command is not None:
            facts = facts | told(command)
        return {
            "id": self.id,
            "argv": facts["argv"],
            "merged": self.stderr is None,
            "closed": self.closed,
            "running": command is not None and command.running,
            **{name: facts[name] for name in TOLD},
            "started_at": facts["started_at"],
            "stdout_bytes": self.stdout.total,
            "stderr_bytes": self.stderr.total if self.stderr is not None else 0,
        }


TOLD = ("pid", "exit_code", "signal", "timed_out", "lost", "elapsed_seconds", "cpu_ms", "max_memory_bytes")


def told(command: Command) -> dict[str, Any]:
    """What is known about a command now."""
    return {name: getattr(command, name) for name in TOLD}


class KeptCommands:
    """The commands of one sandbox; `directory` is where their output lies."""

    def __init__(self, sandbox_id: str, directory: str, spool_bytes: int, journal: Journal) -> None:
        self._sandbox_id = sandbox_id
        self._directory = directory
        self._spool_bytes = spool_bytes
        self._journal = journal
        self._known: dict[str, KeptCommand] = {}
        self._ids: dict[int, str] = {}
        self._next = 1
        self._unwritten: dict[str, asyncio.TimerHandle] = {}
        self._bytes = 0
        self._watching: set[asyncio.Task[None]] = set()

    def take_up(self, reason: str) -> None:
        """Know what a keeper before this one wrote down; what it ran is lost, for that reason."""
        for number, facts in self._journal.commands(self._sandbox_id):
            if facts["exit_code"] is None:
                facts |= {"exit_code": _LOST_EXIT_CODE, "signal": _SIGKILL, "lost": reason}
                self._journal.keep_command(self._sandbox_id, number, facts)
            kept = KeptCommand(facts, number, None)
            self._known[kept.id] = kept
            self._next = number + 1

    def new_spool(self) -> KeptSpool:
        """A place for one stream."""
        return KeptSpool(f"{self._directory}/{secrets.token_hex(8)}", self._spool_bytes)

    def began(self, command: Command) -> None:
        """A command has started. It is written down a moment later, or by `settle_now`."""
        assert isinstance(command.stdout, KeptSpool)
        facts: dict[str, Any] = {
            "id": f"cmd-{secrets.token_hex(8)}",
            "argv": [shown(word) for word in command.argv],
            "started_at": time.time() - command.elapsed_seconds,
            "stdout": command.stdout.path,
            "stderr": command.stderr.path if isinstance(command.stderr, KeptSpool) else None,
            **told(command),
        }
        kept = KeptCommand(facts, self._next, command)
        kept.history = self
        self._next += 1
        self._known[kept.id] = kept
        self._ids[id(command)] = kept.id
        self._unwritten[kept.id] = asyncio.get_running_loop().call_later(_WRITE_AFTER_SECONDS, self.settle_now, kept)
        watching = asyncio.create_task(self._watch(kept, command))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        if len(self._known) > KEPT_COMMANDS + _SPARE_COMMANDS or self._bytes > KEPT_BYTES:
            self._make_room()

    def settle_now(self, kept: KeptCommand) -> None:
        """Write a command down if it is not. Does not raise: a disk that is full is no reason to end anything."""
        timer = self._unwritten.pop(kept.id, None)
        if timer is not None:
            timer.cancel()
            self._write_down(kept)

    @contextlib.contextmanager
    def answering(self, kept: KeptCommand) -> Iterator[None]:
        """Around the wait for a command's end whose answer, which holds its output, is made in the same step of the
        task: it is written down in the loop's next turn."""
        kept.answering += 1
        try:
            yield
        finally:
            kept.answering -= 1
            asyncio.get_running_loop().call_soon(self._settle_answered, kept)

    def _settle_answered(self, kept: KeptCommand) -> None:
        self.settle_end(kept)
        if kept.closed:
            _close(kept)

    async def _watch(self, kept: KeptCommand, command: Command) -> None:
        await command.wait()
        if not kept.answering:
            self.settle_end(kept)
        await command.wait_closed()
        self._bytes += _size(kept)
        if not kept.answering:
            _close(kept)

    def settle_end(self, kept: KeptCommand) -> None:
        """Write down once how a command ended: before anybody is told, but for who waited for it with `answering`."""
        if kept.command is None or kept.command.running or kept.facts["exit_code"] is not None:
            return
        timer = self._unwritten.pop(kept.id, None)
        if timer is not None:
            timer.cancel()
        kept.facts |= told(kept.command)
        self._write_down(kept)

    def _write_down(self, kept: KeptCommand) -> None:
        if kept.id not in self._known:
            return
        try:
            for spool in kept.spools:
                spool.keep()
            self._journal.keep_command(self._sandbox_id, kept.number, kept.facts)
        except OSError as error:
            _log.warning("%s of %s: %s", kept.id, self._sandbox_id, error)

    def _make_room(self) -> None:
        """Forget the oldest that are over, where there are too many or too much is kept of them."""
        ended = [kept for kept in self._known.values() if kept.over]
        sizes = {kept.id: _size(kept) for kept in ended}
        # Beside many that run, those that have just ended are known for a while all the same.
        most = max(_SPARE_COMMANDS, KEPT_COMMANDS - (len(self._known) - len(ended)))
        self._bytes = sum(sizes.values())
        gone = []
        while ended and (len(ended) > most or self._bytes > KEPT_BYTES):
            oldest = ended.pop(0)
            self._bytes -= sizes[oldest.id]
            gone.append(oldest)
        for kept in gone:
            del self._known[kept.id]
            if kept.command is not None:
                self._ids.pop(id(kept.command), None)
            for spool in kept.spools:
                spool.remove()
        if gone:
            with contextlib.suppress(OSError):
                self._journal.forget_commands(self._sandbox_id, [kept.number for kept in gone])

    def of(self, command: Command) -> KeptCommand:
        """The command that has begun."""
        return self._known[self._ids[id(command)]]

    def get(self, command_id: str) -> KeptCommand:
        """The command of that id. Raises NotFoundError."""
        try:
            return self._known[command_id]
        except KeyError:
            raise NotFoundError(
                f"No command {command_id[:64]!r}", hint=f"the last {KEPT_COMMANDS} commands of a sandbox are known"
            ) from None

    def list(self) -> tuple[KeptCommand, ...]:
        """Those that run, and the last that have ended."""
        return tuple(self._known.values())

    async def settle(self) -> None:
        """Write everything down; the box is gone."""
        for kept in self._known.values():
            self.settle_now(kept)
            self.settle_end(kept)
        for watching in list(self._watching):
            watching.cancel()


def shown(text: str) -> str:
    """Text that JSON can carry: bytes that are no UTF-8 appear as \\xNN."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _close(kept: KeptCommand) -> None:
    for spool in kept.spools:
        spool.close()


def _size(kept: KeptCommand) -> int:
    return kept.stdout.kept_bytes + (kept.stderr.kept_bytes if kept.stderr is not None else 0)
