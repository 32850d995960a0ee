# SPDX-License-Identifier: MIT
"""`python -m benchmarks.run [--rounds N] [--json FILE] [--only TEXT]`: print a table, write JSON of ratios."""

from __future__ import annotations

import argparse
import json
import os
import platform
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks.cases import BASELINE, cases
from benchmarks.measure import measure, table


def main() -> None:
    parser = argparse.ArgumentParser(description="Time agentbox against floors and rivals, interleaved.")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of all cases (default 40)")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="where the numbers go as JSON")
    parser.add_argument("--only", default="", help="time only cases whose name contains this, and the baseline")
    options = parser.parse_args()
    with ExitStack() as stack:
        chosen = {name: case for name, case in cases(stack).items() if options.only in name or name == BASELINE}
        rows = measure(chosen, BASELINE, options.rounds)
    print(table(rows, BASELINE))
    report = {
        "host": {"kernel": platform.release(), "machine": platform.machine(), "cpus": os.cpu_count()},
        "load_average": os.getloadavg(),
        "baseline": BASELINE,
        "cases": {row.case: asdict(row) for row in rows},
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"\nratios and spreads: {options.json}")


if __name__ == "__main__":
    main()
