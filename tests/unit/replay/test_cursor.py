# SPDX-License-Identifier: MIT
"""The cursor of a replay: what it answers, and where it says that a program parted from what was recorded."""

from __future__ import annotations

import pytest

from agentbox.replay.cursor import Cursor
from tests.unit.replay.traces import clocks, opened, read_text, recorded

AT = {"file": "/project/a.py", "line": 4}


def test_effects_are_answered_with_their_recorded_results_in_their_order() -> None:
    cursor = Cursor(recorded(read_text("a", "one"), opened("/b"), read_text("c", "two")))
    assert cursor.asked("effect", "main", "fs.read_text", {"path": "a"}).result == "one"
    assert cursor.asked("observe", "main", "fs.open_read", {"sha256": "a", "path": "/b"}).divergence is None
    assert cursor.asked("effect", "main", "fs.read_text", {"path": "c"}).result == "two"
    assert (cursor.matched, cursor.total, cursor.unfinished()) == (3, 3, [])


def test_a_recorded_error_is_a_result() -> None:
    error = {"error": {"type": "FileNotFoundError", "message": "no"}}
    cursor = Cursor(recorded(("effect", "fs.read_text", {"path": "a"}, error)))
    assert cursor.asked("effect", None, "fs.read_text", {"path": "a"}).result == error


def test_other_arguments_are_a_divergence_at_that_step_with_both_and_the_place() -> None:
    cursor = Cursor(recorded(opened("/a", "one"), opened("/b", "two")))
    cursor.asked("observe", "main", "fs.open_read", {"path": "/a", "sha256": "one"})
    found = cursor.asked("observe", "main", "fs.open_read", {"path": "/b", "sha256": "other"}, AT).divergence
    assert found is not None
    assert (found.kind, found.step, found.place and found.place.line) == ("different", 2, 4)
    assert any("two" in line for line in found.diff)
    assert any("other" in line for line in found.diff)
    assert cursor.divergence is found


def test_swapped_steps_are_reported_at_the_first_of_them() -> None:
    cursor = Cursor(recorded(read_text("a"), read_text("b")))
    found = cursor.asked("effect", "main", "fs.read_text", {"path": "b"}).divergence
    assert found is not None
    assert found.step == 1
    assert found.expected == {"kind": "effect", "op": "fs.read_text", "args": {"path": "a"}}


def test_what_comes_after_the_end_of_a_lane_is_new() -> None:
    cursor = Cursor(recorded(read_text("a"), read_text("x", lane="main.0")))
    cursor.asked("effect", "main", "fs.read_text", {"path": "a"})
    found = cursor.asked("effect", "main", "fs.read_text", {"path": "b"}).divergence
    assert found is not None
    assert (found.kind, found.step, found.expected) == ("new", 2, None)


def test_what_did_not_happen_is_missing_from_its_lane() -> None:
    cursor = Cursor(recorded(read_text("a"), read_text("b", lane="main.0"), read_text("c", lane="main.0")))
    cursor.asked("effect", "main", "fs.read_text", {"path": "a"})
    [missing] = cursor.unfinished()
    assert (missing.kind, missing.step, missing.lane) == ("missing", 2, "main.0")
    assert "and 1 more after it" in missing.message


def test_order_between_lanes_does_not_matter_and_results_stay_with_their_lane() -> None:
    cursor = Cursor(recorded(read_text("a", "of 0", "main.0"), read_text("a", "of 1", "main.1")))
    assert cursor.asked("effect", "main.1", "fs.read_text", {"path": "a"}).result == "of 1"
    assert cursor.asked("effect", "main.0", "fs.read_text", {"path": "a"}).result == "of 0"


@pytest.mark.parametrize("lane", ["main>", "main>.0", "main>~0", "!main", "!main.0/1"])
def test_lanes_inside_an_effect_and_of_other_programs_are_not_compared(lane: str) -> None:
    cursor = Cursor(recorded(read_text("a"), opened("/secret", lane=lane)))
    assert cursor.total == 1
    assert cursor.asked("observe", lane, "fs.open_read", {"path": "/any"}).divergence is None


def test_clocks_are_served_many_at_a_time_until_something_else_comes() -> None:
    recording = recorded(clocks(["time.time", 1.5]), clocks(["time.time", 2.5], ["os.times", 3]), read_text("a"))
    cursor = Cursor(recording)
    assert cursor.calls("main", "time.time").result == {
        "calls": [["time.time", 1.5], ["time.time", 2.5], ["os.times", 3]]
    }
    assert cursor.asked("effect", "main", "fs.read_text", {"path": "a"}).result == "text"


def test_a_clock_that_was_not_asked_for_diverges_at_its_record() -> None:
    cursor = Cursor(recorded(read_text("a"), clocks(["time.time", 1.5])))
    cursor.asked("effect", "main", "fs.read_text", {"path": "a"})
    found = cursor.calls("main", "time.monotonic").divergence
    assert found is not None
    assert found.step == 2
    assert "recorded time.time, but the program does time.monotonic" in found.message


def test_calls_that_were_served_and_not_made_are_what_comes_next() -> None:
    cursor = Cursor(recorded(clocks(["time.time", 1.5], ["time.time", 2.5]), read_text("a")))
    cursor.calls("main", "time.time")
    found = cursor.asked("effect", "main", "fs.read_text", {"path": "a"}, {"unused": 1}).divergence
    assert found is not None
    assert found.expected == {"kind": "clock", "op": "time.time", "args": {}}


def test_calls_that_a_process_leaves_at_its_end_are_missing() -> None:
    cursor = Cursor(recorded(clocks(["time.time", 1.5], ["time.time", 2.5])))
    cursor.calls("main", "time.time")
    cursor.rest("main", {"unused": 1})
    assert [one.kind for one in cursor.unfinished()] == ["missing"]


def test_a_guest_cannot_go_back_behind_its_clocks() -> None:
    cursor = Cursor(recorded(read_text("a"), clocks(["time.time", 1.5])))
    cursor.asked("effect", "main", "fs.read_text", {"path": "a"})
    cursor.calls("main", "time.time")
    cursor.rest("main", {"unused": 1000})
    assert cursor.matched == 1


def test_a_spawn_is_answered_with_what_the_program_gave() -> None:
    spawn = ("observe", "proc.spawn", {"argv": ["echo"], "program": "/bin/echo"})
    result = ("observe", "proc.result", {"spawn": 1, "code": 3, "stdout": {"b64": "aGkK"}}, None, "other")
    cursor = Cursor(recorded(spawn, result))
    answer = cursor.asked("observe", "main", "proc.spawn", {"argv": ["echo"], "program": "/bin/echo"})
    assert (answer.result["code"], answer.result["stdout"]) == (3, {"b64": "aGkK"})
    assert cursor.total == 1


def test_a_spawn_without_a_recorded_result_cannot_be_answered() -> None:
    cursor = Cursor(recorded(("observe", "proc.spawn", {"argv": ["top"]})))
    found = cursor.asked("observe", "main", "proc.spawn", {"argv": ["top"]}).divergence
    assert found is not None
    assert found.kind == "unanswerable"


def test_denials_are_compared_by_what_they_are_and_not_by_how_many() -> None:
    denied = ("deny", "read", {"target": "/etc/shadow", "enforced": True})
    cursor = Cursor(recorded(denied, denied))
    for _ in range(3):
        assert cursor.denied("main", "read", {"target": "/etc/shadow"}).divergence is None
    assert cursor.unfinished() == []
    found = cursor.denied("main", "write", {"target": "/etc/shadow"}, AT).divergence
    assert found is not None
    assert (found.kind, found.place and found.place.file) == ("denial", "/project/a.py")


def test_a_denial_that_does_not_come_again_is_a_divergence() -> None:
    cursor = Cursor(recorded(("deny", "read", {"target": "/etc/shadow", "enforced": True})))
    [missing] = cursor.unfinished()
    assert (missing.kind, missing.step) == ("denial", 1)


def test_effects_that_come_next_are_told_ahead_whatever_is_between_them() -> None:
    cursor = Cursor(recorded(read_text("a", "1"), opened("/b"), read_text("c", "2"), read_text("x", lane="other")))
    cursor.asked("effect", "main", "fs.read_text", {"path": "a"})
    assert cursor.ahead("main") == [["fs.read_text", {"path": "c"}, "2"]]


def test_only_the_first_divergence_is_kept() -> None:
    cursor = Cursor(recorded(read_text("a"), read_text("b")))
    first = cursor.asked("effect", "main", "fs.read_text", {"path": "x"}).divergence
    cursor.asked("effect", "main", "fs.read_text", {"path": "y"})
    assert cursor.divergence is first


def test_numbers_of_files_are_not_compared() -> None:
    cursor = Cursor(recorded(("observe", "fs.open_read", {"path": "/k", "identity": "1:2", "once": True})))
    answer = cursor.asked("observe", "main", "fs.open_read", {"path": "/k", "identity": "3:4", "once": True})
    assert answer.divergence is None


@pytest.mark.parametrize("call", [None, [], ["time"], [1, 2], ["t", "x", [1]], ["t", 1, [[]]], ["t", 1, ["y"]]])
def test_values_of_clocks_that_no_guard_sends_are_no_steps(call: object) -> None:
    assert Cursor(recorded(clocks(call))).total == 0


def test_what_came_too_early_says_where_it_was_recorded() -> None:
    cursor = Cursor(recorded(read_text("a"), read_text("b"), read_text("c")))
    found = cursor.asked("effect", "main", "fs.read_text", {"path": "c"}).divergence
    assert found is not None
    assert found.message.endswith("but the program does fs.read_text c, which was recorded as step 3")


def test_what_looks_the_same_says_what_of_it_is_other() -> None:
    cursor = Cursor(recorded(("effect", "net.get", {"url": "http://a/", "body_sha256": "1"}, {"status": 200})))
    found = cursor.asked("effect", "main", "net.get", {"url": "http://a/", "body_sha256": "2"}).divergence
    assert found is not None
    assert found.message.endswith("recorded net.get http://a/, but the program does it with other body_sha256")


@pytest.mark.parametrize(("lane", "step"), [("main.0", 2), ("main/7", 2), ("main.0.4", 2), ("other", 4)])
def test_what_comes_in_a_new_lane_stands_where_the_lane_began(lane: str, step: int) -> None:
    cursor = Cursor(recorded(read_text("a"), read_text("b"), read_text("c")))
    cursor.asked("effect", "main", "fs.read_text", {"path": "a"})
    found = cursor.asked("effect", lane, "fs.read_text", {"path": "x"}).divergence
    assert found is not None
    assert (found.kind, found.step) == ("new", step)


def test_a_result_whose_bytes_are_lost_is_named_as_what_cannot_be_replayed() -> None:
    cursor = Cursor(recorded(("effect", "proc.run", {"argv": ["x"]}, {"stdout": {"kept": "ab", "bytes": 9}})))
    cursor.asked("effect", "main", "proc.run", {"argv": ["x"]})
    found = cursor.lost("ab", "main", AT).divergence
    assert found is not None
    assert (found.kind, found.step, found.place and found.place.line) == ("unanswerable", 1, 4)


def test_steps_that_come_next_are_told_without_a_gap_and_up_to_what_the_host_must_answer() -> None:
    spawn = ("observe", "proc.spawn", {"argv": ["x"]})
    cursor = Cursor(recorded(read_text("a"), opened("/b", "1"), read_text("c", "2"), spawn, opened("/d")))
    cursor.asked("effect", "main", "fs.read_text", {"path": "a"})
    assert cursor.steps_ahead("main") == [
        ["observe", "fs.open_read", {"path": "/b", "sha256": "1"}, None],
        ["effect", "fs.read_text", {"path": "c"}, "2"],
    ]
    assert cursor.matched == 1
