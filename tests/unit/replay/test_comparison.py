# SPDX-License-Identifier: MIT
"""What must fit before a replay, what is compared after it, and how two traces are held against each other."""

from __future__ import annotations

from typing import Any

import pytest

from agentbox.replay.comparison import Conditions, Ending, Written, changed_code, compare_ends, preconditions
from agentbox.replay.differences import differences
from agentbox.replay.report import Report
from tests.unit.replay.traces import END, START, clocks, opened, read_text, recorded

FITTING: dict[str, Any] = {
    "policy_sha256": "p",
    "argv": ("python3", "a.py"),
    "directory": "/project",
    "python": "3.11",
    "interpreter": {"kind": "python", "path": "/usr/bin/python3.11", "size": 5},
    "stdin": {"kind": "file", "bytes": 1, "sha256": "s"},
}
STARTED = {**START, "interpreter": FITTING["interpreter"], "stdin": FITTING["stdin"]}


def test_nothing_is_said_of_what_fits() -> None:
    assert preconditions(recorded(start=STARTED), Conditions(**FITTING)) == []


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("policy_sha256", "other", "policy"),
        ("argv", ("python3", "a.py", "more"), "command"),
        ("directory", "/elsewhere", "command"),
        ("interpreter", {"kind": "python", "path": "/usr/bin/python3.13", "size": 5}, "interpreter"),
        ("stdin", {"kind": "file", "bytes": 1, "sha256": "other"}, "input"),
    ],
)
def test_what_does_not_fit_is_named_before_the_first_step(name: str, value: object, kind: str) -> None:
    [found] = preconditions(recorded(start=STARTED), Conditions(**{**FITTING, name: value}))
    assert (found.kind, found.step) == (kind, 0)
    assert found.diff


def test_a_pipe_on_stdin_is_not_compared() -> None:
    start = {**STARTED, "stdin": {"kind": "pipe"}}
    assert preconditions(recorded(start=start), Conditions(**FITTING)) == []


def test_a_changed_script_is_told_and_refuses_nothing() -> None:
    start = {**STARTED, "script": {"path": "/project/a.py", "sha256": "old"}}
    now = Conditions(**FITTING, script={"path": "/project/a.py", "sha256": "new"})
    assert preconditions(recorded(start=start), now) == []
    assert changed_code(recorded(start=start), now) == "/project/a.py was changed since it was recorded"


def _ends(ending: Ending, *records: tuple[Any, ...], **end: Any) -> list[tuple[str, int]]:
    found = compare_ends(recorded(*records, end={**END, **end}), ending, lambda _: b"recorded\n")
    return [(str(one.kind), one.step) for one in found]


def test_an_equal_end_is_no_divergence() -> None:
    assert _ends(Ending(0, {"stdout": Written(0, "empty")})) == []


def test_another_exit_code_and_another_output_are_reported_at_the_end() -> None:
    written = {"stdout": Written(3, "other", b"now")}
    assert _ends(Ending(4, written), stdout={"bytes": 9, "sha256": "x", "kept": "x"}) == [
        ("output", 1),
        ("exit_code", 1),
    ]


def test_another_output_is_shown_as_a_diff() -> None:
    recording = recorded(end={**END, "stdout": {"bytes": 9, "sha256": "x", "kept": "x"}})
    [found] = compare_ends(recording, Ending(0, {"stdout": Written(4, "y", b"now\n")}), lambda _: b"recorded\n")
    assert "-recorded" in found.diff
    assert "+now" in found.diff


def _written(path: str, before: object, after: object) -> tuple[Any, ...]:
    return ("observe", "fs.written", {"path": path, "before": before, "after": after}, None, None, "supervisor")


FILE = {"bytes": 1, "sha256": "a", "mode": 0o644, "mtime_ns": "5"}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({"/f": {**FILE, "mtime_ns": "9"}}, []),
        ({"/f": {**FILE, "sha256": "b"}}, [("file", 1)]),
        ({"/f": {**FILE, "mode": 0o755}}, [("file", 1)]),
        ({"/f": None}, [("file", 1)]),
        ({}, [("file", 1)]),
        ({"/f": FILE, "/g": FILE}, [("file", 2)]),
    ],
    ids=["equal", "other content", "other mode", "removed", "not written", "one more"],
)
def test_written_files_are_compared_by_content_and_mode(now: dict[str, Any], expected: list[tuple[str, int]]) -> None:
    assert _ends(Ending(0, {"stdout": Written(0, "empty")}, now), _written("/f", None, FILE)) == expected


def test_what_was_only_found_changed_is_compared_where_the_replay_changes_it_too() -> None:
    kind, op, args, *rest = _written("/f", {"unknown": True}, FILE)
    found = (kind, op, {**args, "found": True}, *rest)
    streams = {"stdout": Written(0, "empty")}
    assert _ends(Ending(0, streams), found) == []
    assert _ends(Ending(0, streams, {"/f": FILE}), found) == []
    assert _ends(Ending(0, streams, {"/f": {**FILE, "sha256": "b"}}), found) == [("file", 1)]


def test_a_removed_file_must_be_removed_again() -> None:
    ending = Ending(0, {"stdout": Written(0, "empty")}, {"/f": None})
    assert _ends(ending, _written("/f", FILE, None)) == []


def test_the_report_says_how_it_went_in_its_first_line() -> None:
    assert Report(3, 3).lines() == ["agentbox: replay ok — 3/3 recorded steps matched"]
    divergences = preconditions(recorded(start=STARTED), Conditions(**{**FITTING, "policy_sha256": "other"}))
    lines = Report(0, 3, divergences, started=False).lines()
    assert lines[0] == "agentbox: replay FAILED — nothing was started"
    assert lines[1] == "  - the policy is not the one that it was recorded under"


def test_two_equal_recordings_have_no_differences_whatever_their_clocks_said() -> None:
    one = recorded(read_text("a"), clocks(["time.time", 1]), opened("/b"))
    assert differences(one, recorded(read_text("a"), clocks(["time.time", 2]), opened("/b"))) == []


@pytest.mark.parametrize(
    ("records", "kind", "step"),
    [
        ((read_text("a"), opened("/b", "other"), clocks(["time.time", 1])), "different", 2),
        ((read_text("a", "other"), opened("/b"), clocks(["time.time", 1])), "different", 1),
        ((read_text("a"), opened("/b"), clocks(["time.monotonic", 1])), "different", 3),
        ((read_text("a"), opened("/b")), "missing", 3),
        ((read_text("a"), opened("/b"), clocks(["time.time", 1]), read_text("c")), "new", 4),
        (
            (*((read_text("a"), opened("/b"), clocks(["time.time", 1]))), ("deny", "net", {"target": "h:1"})),
            "denial",
            4,
        ),
    ],
    ids=["another hash", "another result", "another clock", "missing", "new", "denied"],
)
def test_the_first_different_step_of_two_recordings_is_found(records: tuple[Any, ...], kind: str, step: int) -> None:
    one = recorded(read_text("a"), opened("/b"), clocks(["time.time", 1]))
    [found] = differences(one, recorded(*records))
    assert (found.kind, found.step) == (kind, step)


def test_how_two_runs_began_and_ended_is_compared_too() -> None:
    other = recorded(start={**START, "argv": ["node", "a.js"]}, end={**END, "returncode": 1})
    assert [str(one.kind) for one in differences(recorded(), other)] == ["command", "exit_code"]


def test_two_runs_are_told_apart_by_results_and_by_who_changed_a_file() -> None:
    changed = ("observe", "fs.written", {"path": "/f", "before": None, "after": None}, None, None, "supervisor")
    found = differences(recorded(read_text("a", "one"), changed), recorded(read_text("a", "two")))
    assert [one.message for one in found] == [
        "step 1: fs.read_text a, which has another result in the other (step 1)",
        "step 2: /f was written by this run only",
    ]
    assert found[0].diff[:2] == ("--- one", "+++ other")
