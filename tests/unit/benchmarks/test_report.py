# SPDX-License-Identifier: MIT
"""Tables and JSON of benchmarks, and the verdicts on what is wanted."""

from __future__ import annotations

import json

import pytest

from benchmarks.__main__ import README
from benchmarks.report import BEGIN, END, Row, Section, described, host, in_order, markdown, number, with_tables
from benchmarks.sections import NAMES, Options
from benchmarks.spread import Spread
from benchmarks.wanted import WANTED, Wanted, judge
from benchmarks.wanted import markdown as verdict_table

ROWS = (
    Row("warm", Spread(1.234, 1.0, 2.0, 40), ratio=Spread(0.1234, 0.1, 0.2, 40), extra={"% warm": 100.0}),
    Row("a | b", Spread(120.4, 100.0, 140.0, 4), "us", Spread(2.0, 1.0, 3.0, 4), "bare", "<= 2.5"),
    Row("nsjail", missing="nsjail is not installed"),
    Row("node", failed="RuntimeError: 503"),
)
SECTION = Section("runs", "One run", "python3 -c", ROWS, ("A note.",))


def test_section_is_the_same_after_a_way_through_json() -> None:
    assert Section.from_json(json.loads(json.dumps(SECTION.as_json()))) == SECTION


def test_table_has_a_line_for_every_row_and_as_many_cells_in_each() -> None:
    lines = [line for line in markdown(SECTION).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(ROWS)
    assert {line.replace("\\|", "").count("|") for line in lines} == {7}


def test_table_says_why_a_row_has_no_numbers() -> None:
    text = markdown(SECTION)
    assert "| nsjail | not here: nsjail is not installed |" in text
    assert "| node | failed: RuntimeError: 503 |" in text


def test_table_names_what_a_ratio_is_to() -> None:
    text = markdown(SECTION)
    assert "ratio to python3 -c" in text
    assert "| warm; % warm 100 | 1.23 ms | 1.00 to 2.00 | 0.12 | 0.10 to 0.20 |" in text
    assert "| a \\| b | 120 us | 100 to 140 | 2.00 to bare | 1.00 to 3.00 | <= 2.5 |" in text


def test_section_is_broken_by_something_of_ours_alone() -> None:
    assert SECTION.broken
    assert not Section("runs", "One run", rows=ROWS[:3]).broken
    assert Section("runs", "One run", failed="OSError").broken


def test_rows_stand_in_the_order_of_their_cases() -> None:
    rows = in_order([Row("c"), Row("unknown"), Row("a")], ["a", "b", "c"])
    assert [row.case for row in rows] == ["a", "c", "unknown"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1234"), (99.95, "100.0"), (12.34, "12.3"), (1.234, "1.23"), (0.0534, "0.053"), (0.0, "0.00")],
)
def test_numbers_have_three_digits_that_matter(value: float, text: str) -> None:
    assert number(value) == text


def test_host_says_what_explains_numbers() -> None:
    found = host()
    assert found["processors"] >= 1
    assert found["memory_mb"] > 0
    assert json.dumps(found)


def test_tables_take_the_place_of_those_before() -> None:
    page = f"# Page\n\n{BEGIN}\n\nold\n\n{END}\n\nmore\n"
    new = with_tables(page, "new\n")
    assert new == f"# Page\n\n{BEGIN}\n\nnew\n\n{END}\n\nmore\n"
    assert with_tables(new, "old") == page


@pytest.mark.parametrize("page", ["no marks", BEGIN, f"{END} {BEGIN}"])
def test_page_without_a_place_for_tables_is_left_alone(page: str) -> None:
    with pytest.raises(ValueError, match="no"):
        with_tables(page, "new")


def test_readme_has_a_place_for_tables() -> None:
    page = README.read_text(encoding="utf-8")
    assert "new table" in with_tables(page, "new table")


def test_description_names_machine_load_and_date() -> None:
    report = {"date": "2026-01-02 03:04", "host": host(), "quick": True, "load_average_before": 1.25, "seconds": 60}
    text = described(report)
    assert text.startswith("2026-01-02 03:04; ")
    assert "load 1.2 before, 60 seconds, `--quick`" in text


def wanted(most: bool, bound: float, case: str = "warm") -> Wanted:
    return Wanted("what", "runs", case, "ratio", most, bound)


@pytest.mark.parametrize(
    ("one", "verdict"),
    [
        (wanted(True, 0.2), "reached"),
        (wanted(True, 0.1234), "reached"),
        (wanted(True, 0.12), "not reached"),
        (wanted(False, 0.12), "reached"),
        (wanted(False, 3), "not reached"),
    ],
)
def test_verdict_compares_the_median_with_the_bound(one: Wanted, verdict: str) -> None:
    (judged,) = judge([SECTION], [one])
    assert judged.verdict == verdict
    assert judged.median == 0.1234


@pytest.mark.parametrize(
    ("sections", "case", "why"),
    [
        ([], "warm", "not chosen"),
        ([SECTION], "nsjail", "nsjail is not installed"),
        ([SECTION], "node", "failed: RuntimeError: 503"),
        ([SECTION], "none", "no row 'none'"),
        ([Section("runs", "One run", failed="OSError")], "warm", "its section failed"),
    ],
)
def test_what_was_not_measured_is_not_reached_and_says_why(sections: list[Section], case: str, why: str) -> None:
    (judged,) = judge(sections, [wanted(True, 1, case)])
    assert (judged.verdict, judged.why, judged.median) == ("not measured", why, None)


def test_verdicts_stand_in_a_table_with_bound_and_spread() -> None:
    text = verdict_table(judge([SECTION], [wanted(True, 0.15), wanted(False, 3, "nsjail")]))
    assert "| what | <= 0.15 | 0.12 | 0.10 to 0.20 | reached |" in text
    assert "| what | >= 3.00 |  |  | not measured: nsjail is not installed |" in text


def test_every_bound_is_on_a_section_that_exists_and_has_a_name_of_its_own() -> None:
    assert {one.section for one in WANTED} <= set(NAMES)
    assert len({one.what for one in WANTED}) == len(WANTED)


def test_rounds_are_the_ones_asked_for_else_the_section_s_own() -> None:
    assert Options(rounds=7, quick=True).rounds_or(40, 2) == 7
    assert Options(quick=True).rounds_or(40, 2) == 2
    assert Options().rounds_or(40, 2) == 40
