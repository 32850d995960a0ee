# SPDX-License-Identifier: MIT
"""Soaks us: long, mixed, hostile use from one seed; ends with 1 when something got lost, or was left, or was wrong.

    python -m tests.soak [--seed N] [--size 1.0] [--backends jail,gvisor] [--json FILE] [SECTION ...]

Two processes at one seed do the same things in the same order in each box; what meets whom when is the machine's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.soak import ground
from tests.soak.section import Found, Options
from tests.soak.sections import SECTIONS


def main(words: Sequence[str]) -> int:
    """The exit code."""
    names = [section.name for section in SECTIONS]
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"one of {', '.join(names)}; default all")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32), help="default: another each time")
    parser.add_argument("--size", type=float, default=1.0, help="the part of a whole soak that is done")
    parser.add_argument("--backends", default="", help="those to use, with commas; default: all that are here")
    parser.add_argument("--json", type=Path, help="a file to write what was found to")
    given = parser.parse_args(words)
    if unknown := set(given.sections) - set(names):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    wanted = tuple(filter(None, given.backends.split(",")))
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentbox-soak-")))
        backends = ground.backends(stack, wanted)
        os.environ["AGENTBOX_STATE_DIR"] = str(place / "state")
        print(f"seed {given.seed}, backends {', '.join(backends) or 'none'}", flush=True)
        found = []
        for section in SECTIONS:
            if not given.sections or section.name in given.sections:
                (place / section.name).mkdir()
                print(f"{section.name}: {section.what}", flush=True)
                options = Options(given.seed, given.size, place / section.name, backends)
                found.append(section.run(options))
                _tell(found[-1])
    if given.json is not None:
        told = {"seed": given.seed, "size": given.size, "backends": backends}
        given.json.write_text(
            json.dumps({**told, "sections": [{**vars(one), "counts": dict(one.counts)} for one in found]}, indent=1)
        )
    return 1 if any(one.faults for one in found) else 0


def _tell(found: Found) -> None:
    counts = ", ".join(f"{count} {name}" for name, count in sorted(found.counts.items()))
    print(f"{found.name}: {counts}; {found.seconds:g} s", flush=True)
    for fault in found.faults:
        print(f"{found.name}: FAULT: {fault}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
