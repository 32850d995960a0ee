# SPDX-License-Identifier: MIT
"""What a shell tool answers, and the text of it that a model reads."""

from __future__ import annotations

from agentbox.records import dataclass

COMPLETED, RUNNING, KILLED, REJECTED = "completed", "running", "killed", "rejected"
NOT_RUNNING = "sandbox is not running"
NOTHING_RUNS = "no command is currently running"


@dataclass(frozen=True, slots=True)
class ShellResult:
    """One answer. `status` is completed, running, killed or rejected; `note` says why for the last two; `elapsed` and
    `idle` are seconds since the command's start and since its last output; `new_characters` is how many came since the
    answer before, whatever `output` shows of them."""

    output: str = ""
    exit_code: int | None = None
    status: str = COMPLETED
    note: str = ""
    elapsed: float = 0.0
    idle: float = 0.0
    new_characters: int = 0

    def render(self) -> str:
        """The text for a model."""
        if self.status == REJECTED:
            return f"ERROR: {self.note}"
        if self.status == KILLED:
            return f"killed (exit={self.exit_code})\n[{self.note}]\noutput:\n{self.output}"
        if self.status == RUNNING:
            news = (
                f"produced {self.new_characters} new characters of output"
                if self.new_characters
                else f"no new output for {seconds(self.idle)}"
            )
            return (
                f"still running after {seconds(self.elapsed)}; {news}\n"
                f"output so far:\n{self.output or '(nothing new)'}\n"
                "Use shell_wait to keep waiting or shell_kill to stop it."
            )
        return f"exit={self.exit_code}\noutput:\n{self.output}"


def rejected(note: str) -> ShellResult:
    """An answer that nothing was done."""
    return ShellResult(status=REJECTED, note=note)


def busy(elapsed: float) -> ShellResult:
    """An answer that another command is still at work."""
    return rejected(
        f"a command has been running for {seconds(elapsed)}. Use shell_wait to keep waiting or shell_kill to stop it "
        "before running something else."
    )


def seconds(value: float) -> str:
    """Seconds for people: 0.4s, 12.0s."""
    return f"{value:.1f}s"
