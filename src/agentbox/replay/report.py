# SPDX-License-Identifier: MIT
"""What a replay found, for a person and for a program."""

from __future__ import annotations

from agentbox.records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbox.replay.divergence import Divergence


@dataclass(slots=True)
class Report:
    """`matched` of `total` recorded steps happened again. `started` is false when something did not fit before.
    `notes` are no divergences: what explains one, or could not be compared."""

    matched: int
    total: int
    divergences: list[Divergence] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    started: bool = True
    exit_code: int | None = None
    trace: str = ""

    @property
    def ok(self) -> bool:
        """Whether everything was as it was recorded."""
        return not self.divergences

    def lines(self) -> list[str]:
        """The report as text; the first line says how it went."""
        notes = [f"  note: {note}" for note in self.notes]
        if self.ok:
            return [f"agentbox: replay ok — {self.matched}/{self.total} recorded steps matched", *notes]
        first = "agentbox: replay FAILED" if self.started else "agentbox: replay FAILED — nothing was started"
        found = [first]
        for divergence in self.divergences:
            head, *rest = divergence.lines()
            found.append(f"  - {head}")
            found += [f"      {line}" for line in rest]
        if self.started and self.matched < self.total:
            found.append(f"  {self.matched} of {self.total} recorded steps happened")
        return [*found, *notes]

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        return {
            "ok": self.ok,
            "started": self.started,
            "matched": self.matched,
            "total": self.total,
            "exit_code": self.exit_code,
            "divergences": [divergence.as_dict() for divergence in self.divergences],
            "notes": self.notes,
            "trace": self.trace,
        }
