# SPDX-License-Identifier: MIT
"""`python -m benchmarks [--quick] [--only SECTION] [--rounds N] [--json FILE]`: what `make bench` does.

Each section is a process of its own, so that none measures what another left behind.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import wanted
from benchmarks.interleaved import progress, reason
from benchmarks.report import Section, described, host, markdown, with_tables
from benchmarks.sections import NAMES, Options

README = Path(__file__).with_name("README.md")


def main() -> None:
    """Measure the chosen sections, print their tables and what was wanted, and write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure agentbox beside its rivals.")
    parser.add_argument(
        "--quick", action="store_true", help="few rounds, to see that everything works; under 2 minutes"
    )
    parser.add_argument("--only", action="append", choices=NAMES, help="this section; may be given again")
    parser.add_argument("--rounds", type=int, help="rounds of each section; default: its own number")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="where the numbers go as JSON")
    parser.add_argument("--readme", action="store_true", help="also put the tables into benchmarks/README.md")
    parser.add_argument("--section", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    chosen = Options(options.rounds, options.quick)
    signal.signal(signal.SIGTERM, _end)
    if options.section:
        print(json.dumps(_measured(options.section, chosen).as_json()))
        return
    begun, load = time.time(), os.getloadavg()[0]
    sections = [_apart(name, sys.argv[1:]) for name in NAMES if not options.only or name in options.only]
    verdicts = wanted.judge(sections)
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d %H:%M", time.localtime(begun)),
        "seconds": round(time.time() - begun),
        "load_average_before": load,
        "host": host(),
        "quick": options.quick,
        "wanted": [verdict.as_json() for verdict in verdicts],
        "sections": {section.name: section.as_json() for section in sections},
    }
    text = "\n".join([described(report), wanted.markdown(verdicts), *map(markdown, sections)])
    print(text)
    if options.readme:
        README.write_text(with_tables(README.read_text(encoding="utf-8"), text), encoding="utf-8")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"JSON: {options.json}")
    if broken := [section.name for section in sections if section.broken]:
        sys.exit(f"not everything of ours could be measured: {', '.join(broken)}")


def _end(number: int, _: object) -> None:
    """What was opened is closed on the way out."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _apart(name: str, words: list[str]) -> Section:
    """A section measured by a process of its own; one that breaks says so and spoils no other."""
    progress(f"section {name}")
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([sys.executable, "-m", "benchmarks", *words, "--section", name], stdout=said)
        try:
            ended = process.wait()
        except BaseException:
            # It has servers and a docker daemon to end.
            process.terminate()
            process.wait()
            raise
        said.seek(0)
        text = said.read()
    progress(f"section {name} took {time.monotonic() - begun:.0f} seconds")
    if ended:
        return Section(name, name.capitalize(), failed=f"the process of this section ended with {ended}")
    return Section.from_json(json.loads(text))


def _measured(name: str, options: Options) -> Section:
    module = importlib.import_module(f"benchmarks.sections.{name}")
    try:
        section: Section = module.measure(options)
    except Exception as error:
        progress("")
        sys.excepthook(type(error), error, error.__traceback__)
        return Section(name, module.TITLE, failed=reason(error))
    return section


if __name__ == "__main__":
    main()
