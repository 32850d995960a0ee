# SPDX-License-Identifier: MIT
"""`python -m benchmarks.all [--rounds N] [--json FILE] [--only TEXT]`: every benchmark, one after the other.

Each is a process of its own, so that none measures what another left behind. `--rounds` goes to all of them, `--only`
to those that can choose; `--json` names the file of the first, and the others' files lie beside it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

CHOOSING = ("run", "policy")
OTHERS = ("start", "egress", "egress_attachments")


def main() -> None:
    parser = argparse.ArgumentParser(description="Run every benchmark; a table and a JSON file of each.")
    parser.add_argument("--rounds", type=int, help="rounds of each benchmark; default: its own")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="where the numbers go as JSON")
    parser.add_argument("--only", default="", help="measure only cases whose name contains this")
    options = parser.parse_args()
    failed = []
    for name in CHOOSING if options.only else (*CHOOSING, *OTHERS):
        print(f"## benchmarks.{name} (load {os.getloadavg()[0]:.1f})\n", flush=True)
        if subprocess.run(command(name, options.rounds, options.json, options.only)).returncode:
            failed.append(name)
        print(flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def command(name: str, rounds: int | None, report: Path, only: str) -> list[str]:
    """The words of one benchmark."""
    own = report if name == CHOOSING[0] else report.with_name(f"{report.stem}-{name}{report.suffix}")
    words = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(own)]
    if rounds is not None:
        words += ["--rounds", str(rounds)]
    if only:
        words += ["--only", only]
    return words


if __name__ == "__main__":
    main()
