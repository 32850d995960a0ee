# SPDX-License-Identifier: MIT
"""What was measured, as rows of sections: to print as Markdown tables, and to keep as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.spread import Spread


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table.

    `ratio` is to what `against` names, or to the section's baseline; `wanted` is a bound of its own, such as "<= 2.5";
    `missing` says why there is nothing, `failed` the same of something of ours that must work; `extra` are further
    figures by their name and unit.
    """

    case: str
    value: Spread | None = None
    unit: str = "ms"
    ratio: Spread | None = None
    against: str = ""
    wanted: str = ""
    missing: str = ""
    failed: str = ""
    extra: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Section:
    """The rows of one part. `failed` says why it could not be measured to its end."""

    name: str
    title: str
    baseline: str = ""
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    failed: str = ""

    @property
    def broken(self) -> bool:
        """Whether something of ours could not be measured."""
        return bool(self.failed) or any(row.failed for row in self.rows)

    def row(self, case: str) -> Row | None:
        """The row of a case."""
        return next((row for row in self.rows if row.case == case), None)

    def as_json(self) -> dict[str, Any]:
        """All of it, for json.dumps."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Section:
        """The inverse of `as_json`."""
        rows = tuple(
            Row(**{**row, "value": _spread(row["value"]), "ratio": _spread(row["ratio"])}) for row in data["rows"]
        )
        return cls(**{**data, "rows": rows, "notes": tuple(data["notes"])})


def in_order(rows: Iterable[Row], cases: Sequence[str]) -> tuple[Row, ...]:
    """Rows in the order of their cases; those of no case come last, as they came."""
    places = {case: place for place, case in enumerate(cases)}
    return tuple(sorted(rows, key=lambda row: places.get(row.case, len(places))))


def _spread(data: Mapping[str, Any] | None) -> Spread | None:
    return None if data is None else Spread(**data)


def markdown(section: Section) -> str:
    """The section as a heading, a table and notes."""
    lines = [f"## {section.title}", ""]
    if section.failed:
        lines += [f"Not measured to its end: {section.failed}", ""]
    if section.rows:
        to = f"ratio to {section.baseline}" if section.baseline else "ratio"
        wanted = any(row.wanted for row in section.rows)
        lines += ["| case | median | p10 to p90 | " + to + " | p10 to p90 |" + (" wanted |" if wanted else "")]
        lines += ["|---|---|---|---|---|" + ("---|" if wanted else "")]
        lines += [_line(row, wanted) for row in section.rows]
        lines += [""]
    lines += [line for note in section.notes for line in (note, "")]
    return "\n".join(lines).rstrip() + "\n"


def _line(row: Row, wanted: bool) -> str:
    case = row.case + "".join(f"; {name} {_figure(value)}" for name, value in row.extra.items())
    if row.missing or row.failed:
        cells = [case, f"failed: {row.failed}" if row.failed else f"not here: {row.missing}", "", "", ""]
    else:
        value, ratio = row.value, row.ratio
        against = f" to {row.against}" if row.against and ratio else ""
        cells = [
            case,
            f"{number(value.median)} {row.unit}" if value else "",
            f"{number(value.p10)} to {number(value.p90)}" if value else "",
            f"{number(ratio.median)}{against}" if ratio else "",
            f"{number(ratio.p10)} to {number(ratio.p90)}" if ratio else "",
        ]
    if wanted:
        cells.append(row.wanted)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _figure(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else number(value)


def number(value: float) -> str:
    """Three digits that matter, without an exponent; whole from 100."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3f}"


BEGIN, END = "<!-- tables of make bench -->", "<!-- end of the tables -->"


def with_tables(page: str, tables: str) -> str:
    """The page with these tables between its two marks; ValueError when it has none."""
    before, found, rest = page.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not found or not found_end:
        raise ValueError(f"the page has no {BEGIN} with {END} behind it")
    return f"{before}{BEGIN}\n\n{tables.strip()}\n\n{END}{after}"


def described(report: Mapping[str, Any]) -> str:
    """When and on what a report was measured, as a sentence."""
    machine = report["host"]
    user = "root" if machine["root"] else "an ordinary user"
    quick = ", `--quick`: too few rounds to say much" if report["quick"] else ""
    return (
        f"{report['date']}; {machine['processors']} processors ({machine['processor']}), {machine['memory_mb']} MB, "
        f"Linux {machine['kernel']}, {machine['system']}, as {user}; load {report['load_average_before']:.1f} before, "
        f"{report['seconds']} seconds{quick}.\n"
    )


def host() -> dict[str, Any]:
    """The machine, as far as it explains numbers."""
    return {
        "processor": _first(_lines("/proc/cpuinfo"), "model name"),
        "processors": os.cpu_count(),
        "memory_mb": int(_first(_lines("/proc/meminfo"), "MemTotal").split()[0]) >> 10,
        "kernel": platform.release(),
        "system": _first(_lines("/etc/os-release"), "PRETTY_NAME", "=").strip('"'),
        "root": os.geteuid() == 0,
    }


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _first(lines: Sequence[str], name: str, separator: str = ":") -> str:
    for line in lines:
        key, found, value = line.partition(separator)
        if found and key.strip() == name:
            return value.strip()
    return "0"
