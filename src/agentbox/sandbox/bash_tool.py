# SPDX-License-Identifier: MIT
"""The tool bash_20250124: a session whose directory, variables, functions and options stay from call to call.

There is no shell that waits between calls and could hang, or be fooled by what a command prints: each call is a new
bash, which takes up the state that the one before wrote down when it ended.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentbox.errors import AgentboxError
from agentbox.sandbox.command import Command
from agentbox.sandbox.results import seconds

if TYPE_CHECKING:
    from agentbox.sandbox.local import LocalSandbox

BASH_TOOL: Mapping[str, Any] = {"type": "bash_20250124", "name": "bash"}
# The state is sourced last line by last line: options come after everything that they could break.
_SCRIPT = r"""
[ -r "$1" ] && . "$1" 2>/dev/null
__agentbox_keep() {
  { declare -p; declare -f; alias -p; printf 'cd -- %q\n' "$PWD"; shopt -p; set +o; } >"$__agentbox_state.new" \
    2>/dev/null && mv -f -- "$__agentbox_state.new" "$__agentbox_state" 2>/dev/null
}
__agentbox_state=$1
trap '__agentbox_keep' EXIT
eval "$2"
"""


class BashSession:
    """The session of one sandbox. Calls wait for each other."""

    def __init__(self, sandbox: LocalSandbox) -> None:
        self._sandbox = sandbox
        self._lock = asyncio.Lock()
        self._running: Command | None = None
        self._state = ""
        self.forget()

    def forget(self) -> None:
        """Begin anew: the box, or the model, wants a fresh session."""
        self._state = f"/tmp/.agentbox-bash-{secrets.token_hex(4)}"  # noqa: S108 - inside the box

    async def restart(self) -> str:
        """End what runs and forget everything; works while another call waits, and on a box that is gone."""
        running = self._running
        try:
            if running is not None and running.running:
                await running.kill()
            self.forget()
            await self._sandbox.link()
        except AgentboxError:
            await self._sandbox.reset()
        return "tool has been restarted."

    async def run(self, command: str) -> str:
        """Run a command and tell its output, and its exit code where that is not 0."""
        limit = self._sandbox.options.exec_timeout
        async with self._lock:
            started = await self._sandbox.exec(
                ["bash", "-c", _SCRIPT, "bash", self._state, command], timeout=None, wait=0
            )
            self._running = started
            try:
                if not await started.wait(limit):
                    await started.kill()
                    text = started.text().text
                    return (
                        f"{text}\ntimed out: the command was stopped after {seconds(limit)} with everything that it "
                        "started"
                    ).lstrip("\n")
            finally:
                self._running = None
            text = started.text().text
            if started.lost is not None:
                return f"{text}\nended: {started.lost}".lstrip("\n")
            return text if not started.exit_code else f"{text}\nexit code {started.exit_code}".lstrip("\n")


async def bash(sandbox: LocalSandbox, arguments: Mapping[str, Any]) -> str:
    """Answer a call of the tool: {"command": TEXT} or {"restart": true}."""
    session = sandbox.bash_session
    try:
        if arguments.get("restart"):
            return await session.restart()
        command = arguments.get("command")
        if not isinstance(command, str):
            return "ERROR: give a command, or restart: true"
        return await session.run(command)
    except AgentboxError as error:
        return f"ERROR: {error.message}{f' ({error.hint})' if error.hint else ''}"
    except (OSError, ValueError) as error:
        return f"ERROR: the command cannot be started: {error}"
