# SPDX-License-Identifier: MIT
"""The command of the benchmarks: what it prints, what it writes, and that a part that cannot be had spoils nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.wanted import WANTED
from tests.docs.render import REPOSITORY
from tests.running_server import clean_environment


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *words],
        cwd=REPOSITORY,
        env=clean_environment({}),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Tables and JSON of one small section, without any rival."""
    path = tmp_path_factory.mktemp("bench") / "below" / "bench.json"
    done = bench("--quick", "--rounds", "1", "--only", "traces", "--json", str(path))
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(path.read_text())


def test_report_says_when_and_on_what_it_was_measured(measured: tuple[str, dict[str, Any]]) -> None:
    _, report = measured
    assert report["host"]["processors"] >= 1
    assert report["quick"] is True
    assert report["date"]
    assert report["load_average_before"] >= 0


def test_rows_of_the_chosen_section_are_in_table_and_report(measured: tuple[str, dict[str, Any]]) -> None:
    text, report = measured
    assert list(report["sections"]) == ["traces"]
    rows = report["sections"]["traces"]["rows"]
    assert "verify of 10,000 records" in [row["case"] for row in rows]
    assert [row["case"] for row in rows if f"| {row['case']} |" not in text] == []
    assert [row["case"] for row in rows if not row["missing"] and not row["value"]["median"] > 0] == []


def test_rival_that_is_not_installed_is_a_row_that_says_so(measured: tuple[str, dict[str, Any]]) -> None:
    text, _ = measured
    assert "| not here: agentbox-runtime 0.3 is not installed |" in text


def test_every_bound_has_a_verdict_also_of_sections_that_were_not_chosen(measured: tuple[str, dict[str, Any]]) -> None:
    text, report = measured
    assert [judged["what"] for judged in report["wanted"]] == [one.what for one in WANTED]
    assert {judged["verdict"] for judged in report["wanted"]} == {"not measured"}
    assert text.count("not measured: not chosen") == len(WANTED)


def test_unknown_section_is_refused(tmp_path: Path) -> None:
    done = bench("--only", "everything", "--json", str(tmp_path / "bench.json"))
    assert done.returncode == 2
    assert "invalid choice: 'everything'" in done.stderr
