# SPDX-License-Identifier: MIT
"""`agentbox sandbox pause|resume|snapshot|snapshots|restore|fork|reset|trace|kill|logs`."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import click

from agentbox.cli.console import Progress, say
from agentbox.cli.server_options import Server, amount, run, server_options, table
from agentbox.sandbox.writing import write_all

_LIFE_SECONDS = 600.0
_ID = click.argument("sandbox_id", metavar="ID")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command(epilog="\b\nExamples:\n  agentbox sandbox pause $id\n")
@_ID
@server_options
def pause(server: Server, sandbox_id: str) -> None:
    """Stop everything in a box where it is."""
    run(server.about(sandbox_id, "POST", "/pause", value={}, seconds=_LIFE_SECONDS))
    click.echo(sandbox_id)


@click.command(epilog="\b\nExamples:\n  agentbox sandbox resume $id\n")
@_ID
@server_options
def resume(server: Server, sandbox_id: str) -> None:
    """Let everything in a paused box go on."""
    run(server.about(sandbox_id, "POST", "/resume", value={}, seconds=_LIFE_SECONDS))
    click.echo(sandbox_id)


@click.command(epilog="\b\nExamples:\n  agentbox sandbox reset $id\n")
@_ID
@server_options
def reset(server: Server, sandbox_id: str) -> None:
    """Build a box anew around its files; what runs in it ends."""
    run(server.about(sandbox_id, "POST", "/reset", value={}, seconds=_LIFE_SECONDS))
    click.echo(sandbox_id)


@click.command(
    epilog="\b\nExamples:\n  agentbox sandbox snapshot $id\n  agentbox sandbox snapshot $id --name before-the-change\n"
)
@_ID
@click.option("--name", metavar="TEXT", help="What it is called.")
@server_options
@_JSON
def snapshot(server: Server, sandbox_id: str, *, name: str | None, as_json: bool) -> None:
    """Keep what is in a box's workspace now, and print its id."""
    value = {} if name is None else {"name": name}
    with _Waiting("taking a snapshot") as waiting:
        made = run(server.about_with_progress(sandbox_id, "/snapshots", value, waiting.told))
    click.echo(json.dumps(made) if as_json else made["snapshot_id"])


@click.command(
    epilog="\b\nExamples:\n  agentbox sandbox snapshots $id\n  agentbox sandbox snapshots $id --rm SNAPSHOT\n"
)
@_ID
@click.option("--rm", "removed", metavar="SNAPSHOT", help="Remove this one.")
@server_options
@_JSON
def snapshots(server: Server, sandbox_id: str, *, removed: str | None, as_json: bool) -> None:
    """List the snapshots of a box's workspace."""
    if removed is not None:
        run(server.about(sandbox_id, "DELETE", f"/snapshots/{removed}", seconds=_LIFE_SECONDS))
        click.echo(removed)
        return
    found = run(server.about(sandbox_id, "GET", "/snapshots"))["snapshots"]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    rows = [
        (one["snapshot_id"], one.get("name") or "-", amount(one["bytes"]), _when(one["created_at"])) for one in found
    ]
    table(("SNAPSHOT", "NAME", "SIZE", "TAKEN"), rows)


@click.command(epilog="\b\nExamples:\n  agentbox sandbox restore $id $(agentbox sandbox snapshot $id)\n")
@_ID
@click.argument("snapshot_id", metavar="SNAPSHOT")
@server_options
def restore(server: Server, sandbox_id: str, snapshot_id: str) -> None:
    """Make a box's workspace what it was; what runs in it ends."""
    value = {"snapshot_id": snapshot_id}
    with _Waiting("restoring") as waiting:
        run(server.about_with_progress(sandbox_id, "/restore", value, waiting.told))
    click.echo(sandbox_id)


@click.command(
    epilog="\b\nExamples:\n  agentbox sandbox fork $id\n  for one in $(agentbox sandbox fork $id -n 3); do\n"
    "    agentbox sandbox exec $one ./try.sh\n  done\n"
)
@_ID
@click.option("-n", "--count", default=1, show_default=True, metavar="NUMBER", help="How many.")
@server_options
@_JSON
def fork(server: Server, sandbox_id: str, *, count: int, as_json: bool) -> None:
    """Make boxes like this one, around copies of its files, and print their ids."""
    with _Waiting("forking") as waiting:
        made = run(server.about_with_progress(sandbox_id, "/fork", {"count": count}, waiting.told))
    if as_json:
        click.echo(json.dumps(made["sandboxes"], indent=2))
        return
    for one in made["sandboxes"]:
        click.echo(one["id"])


@click.command(epilog="\b\nExamples:\n  agentbox sandbox trace $id trace.jsonl && agentbox verify trace.jsonl\n")
@_ID
@click.argument("file", type=click.Path(dir_okay=False))
@server_options
def trace(server: Server, sandbox_id: str, file: str) -> None:
    """Write the trace of a box, as far as it goes, to a new FILE."""

    async def work() -> None:
        box = await server.attach(sandbox_id)
        try:
            await box.fetch_trace(file)
        finally:
            await box.stop()

    run(work())


@click.command(epilog="\b\nExamples:\n  agentbox sandbox logs $id cmd-0123456789abcdef\n")
@_ID
@click.argument("command_id", metavar="COMMAND")
@click.option("-f", "--follow", is_flag=True, help="Go on until the command ends.")
@server_options
def logs(server: Server, sandbox_id: str, command_id: str, *, follow: bool) -> None:
    """Print what a command wrote so far."""

    async def work() -> None:
        box = await server.attach(sandbox_id)
        try:
            command = await box.find_command(command_id)
            if follow:
                async for stream, data in command.follow():
                    write_all(2 if stream == "stderr" else 1, data)
                return
            for error in (False, True):
                write_all(2 if error else 1, await command.output(error=error))
        finally:
            await box.stop()

    run(work())


@click.command(epilog="\b\nExamples:\n  agentbox sandbox kill $id cmd-0123456789abcdef\n")
@_ID
@click.argument("command_id", metavar="COMMAND")
@click.option("--grace", default=5.0, show_default=True, metavar="SECONDS", help="Between TERM and KILL.")
@server_options
def kill(server: Server, sandbox_id: str, command_id: str, *, grace: float) -> None:
    """End a command with everything that it started."""

    async def work() -> int:
        box = await server.attach(sandbox_id)
        try:
            return await (await box.find_command(command_id)).kill(grace)
        finally:
            await box.stop()

    left = run(work())
    if left:
        say(f"{left} of its processes are left")
        sys.exit(1)


COMMANDS = (pause, resume, reset, snapshot, snapshots, restore, fork, trace, logs, kill)


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


class _Waiting:
    """Says on a terminal what takes so long, after a second, and how much is copied."""

    def __init__(self, what: str) -> None:
        import threading

        self._what = what
        self._copied = 0
        self._progress = Progress()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def _show(self) -> None:
        begun = time.monotonic()
        while not self._ended.wait(1.0):
            copied = f", {amount(self._copied)} copied" if self._copied else ""
            self._progress.show(f"{self._what}: {time.monotonic() - begun:.0f} s{copied}")

    def told(self, copied: int) -> None:
        """So many bytes are copied."""
        self._copied = copied

    def __enter__(self) -> _Waiting:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        self._thread.join()
        self._progress.clear()
