# SPDX-License-Identifier: MIT
"""`agentbox diff`: the first step at which two recorded runs part."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from agentbox.cli import exit_codes
from agentbox.cli.console import errors_are_lines


@click.command()
@click.argument("one", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print all differences as one JSON object.")
@click.option("--all", "all_of_them", is_flag=True, help="Print every difference, not only the first.")
def diff(one: Path, other: Path, as_json: bool, all_of_them: bool) -> None:
    """Say where two traces, ONE and OTHER, are different first.

    Neither is judged: `agentbox verify` does that. Exits with 0 when they tell of the same steps, with 1 when not.
    """
    with errors_are_lines():
        from agentbox.replay.differences import differences
        from agentbox.replay.reading import recording_in

        recordings = [recording_in(path) for path in (one, other)]
        found = differences(*recordings)
    if as_json:
        import json

        told = {
            "same": not found,
            "first": found[0].as_dict() if found else None,
            "differences": [divergence.as_dict() for divergence in found],
            "steps": [recording.total for recording in recordings],
        }
        sys.stdout.write(json.dumps(told) + "\n")
    elif not found:
        sys.stdout.write(f"agentbox: no difference — {recordings[0].total} steps in both\n")
    else:
        for divergence in found if all_of_them else found[:1]:
            head, *rest = divergence.lines()
            sys.stdout.write(f"agentbox: {head}\n" + "".join(f"    {line}\n" for line in rest))
        if not all_of_them and len(found) > 1:
            sys.stdout.write(f"agentbox: {len(found) - 1} more differences (--all)\n")
    sys.stdout.flush()
    sys.exit(exit_codes.FAILURE if found else exit_codes.OK)
