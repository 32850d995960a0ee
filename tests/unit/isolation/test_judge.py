# SPDX-License-Identifier: MIT
"""What the exec judge decides of what it sees: without a box, on this test's own process."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentbox.isolation.launcher import judge as module
from agentbox.isolation.launcher import wire
from agentbox.isolation.launcher.judge import Judge, _behind_links, _signed
from agentbox.linux import notify
from agentbox.linux.syscalls import number

pytestmark = pytest.mark.linux
ECHO = {"exe": "/usr/bin/echo", "name": "echo", "rule": "exec: echo"}
CAT = {"exe": "/usr/bin/cat", "name": "cat", "rule": "exec: cat"}
Make = Callable[..., Judge]


@pytest.fixture
def owner() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def make(owner: tuple[socket.socket, socket.socket]) -> Iterator[Make]:
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)

    def judge(rules: list[list[dict[str, Any]]] | None, **plan: Any) -> Judge:
        usual = {"workspace": "/work", "staged": False, "command": None, "writable": [], "grants": []}
        return Judge(-1, proc, owner[0], {**usual, "exec_rules": rules, **plan}, 0)

    yield judge
    os.close(proc)


def allowed(judge: Judge, exe: str, *argv: str, script: str = "") -> str:
    words = [word.encode() for word in argv]
    return judge.reason_to_allow(script or exe, exe, words, script, exe.encode(), "/bin/sh")


def test_every_set_of_rules_must_allow_a_program(make: Make) -> None:
    assert allowed(make([[ECHO, CAT]]), "/usr/bin/cat", "cat", "x") == "exec: cat"
    assert allowed(make([[ECHO, CAT], [CAT]]), "/usr/bin/cat", "cat") == "exec: cat; exec: cat"
    assert allowed(make([[ECHO, CAT], [CAT]]), "/usr/bin/echo", "echo") == ""
    assert allowed(make([[]]), "/usr/bin/echo", "echo") == ""
    assert allowed(make([]), "/usr/bin/echo", "echo") == ""


def test_the_command_may_start_once_as_that_file_with_those_words(make: Make) -> None:
    command = {"exe": "/usr/bin/make", "args": ["all"]}
    judge = make([[]], command=command)
    assert allowed(judge, "/usr/bin/make", "make", "clean") == ""
    assert allowed(judge, "/usr/bin/other", "make", "all") == ""
    assert allowed(judge, "/usr/bin/make", "make", "all") == "the command itself"
    assert allowed(judge, "/usr/bin/make", "make", "all") == ""


def test_a_command_that_is_a_script_is_granted_with_the_words_behind_it(make: Make) -> None:
    command = {"exe": "/p/run.sh", "args": ["-v"]}
    assert allowed(make([[]], command=command), "/bin/sh", "/bin/sh", "./run.sh", "-v", script="/p/run.sh")
    assert not allowed(make([[]], command=command), "/bin/sh", "/bin/sh", "./run.sh", script="/p/run.sh")


def test_a_file_that_no_rule_could_allow_is_refused_before_it_runs(make: Make) -> None:
    judge = make([[ECHO]], command={"exe": "/usr/bin/make", "args": []})
    assert judge.worth_a_look(1, "/usr/bin/echo", "")
    assert judge.worth_a_look(1, "/usr/bin/make", "")
    assert not judge.worth_a_look(1, "/usr/bin/id", "")
    judge.through_env[1] = ("/p/tool", b"python3")
    assert judge.worth_a_look(1, "/usr/bin/id", ""), "env may be looking for a script's interpreter"
    assert make(None).worth_a_look(1, "/usr/bin/id", "")


def test_what_is_below_a_writable_place_can_be_changed(make: Make, tmp_path: Path) -> None:
    judge = make([[]], writable=[(str(tmp_path / "out"), 0o755)], grants=[("/lent", False), ("/given", True)])
    (tmp_path / "out").mkdir()
    assert judge.can_change(str(tmp_path / "out"))
    assert judge.can_change(str(tmp_path / "out" / "program"))
    assert judge.can_change("/given/program"), "what cannot be looked at counts as writable"
    assert not judge.can_change(str(tmp_path / "outside"))
    assert not judge.can_change("/lent/program")


def test_paths_are_resolved_as_the_asking_process_sees_them(make: Make, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("")
    (tmp_path / "link").symlink_to("real")
    judge, own = make([[]]), os.getpid()
    directory = os.open(tmp_path, os.O_RDONLY)
    real = str(tmp_path / "real")
    assert judge.resolve(own, os.fsencode(tmp_path / "link"), "cwd") == real
    assert judge.resolve(own, b"link", f"fd/{directory}") == real
    assert judge.resolve(own, f"/proc/self/fd/{directory}/link".encode(), "cwd") == real
    assert judge.resolve(own, b"", f"fd/{directory}") == str(tmp_path)
    assert judge.same_file(own, os.fsencode(tmp_path / "link"), real)
    assert not judge.same_file(own, b"/nowhere", real)
    with pytest.raises(FileNotFoundError):
        judge.resolve(own, b"missing", f"fd/{directory}")
    os.close(directory)
    assert judge.program_of(own) == os.readlink("/proc/self/exe")
    assert judge.program_of(1 << 22) == ""


def test_a_refused_socket_is_answered_and_reported_as_it_was_asked_for(
    make: Make, owner: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    monkeypatch.setattr(module.notify, "refuse", lambda _listener, _call, code: answers.append(code))
    judge = make(None)
    nr = number("socket")
    assert nr is not None
    for words in ((17, 3 | 0x80000, 768), (2, 3, 1), (0xFFFFFFFF, 1, 0), (2, 1, 0)):
        judge.refuse_socket(notify.Notification(1, 42, nr, (*words, 0, 0, 0)))
    # The filter asks about no ordinary one, and if it did the answer would be no.
    assert answers == [errno.EAFNOSUPPORT, errno.EPERM, errno.EAFNOSUPPORT, errno.EPERM]
    judge.reports.flush()
    receiver = wire.Receiver(owner[1])
    assert receiver.fill()
    taken = receiver.take()
    assert taken is not None
    found = [report["socket"] for report in taken[0]["reports"]]
    assert found[0] == {"pid": 42, "family": 17, "type": 3, "protocol": 768}
    assert found[2]["family"] == -1


def test_rules_of_a_staged_workspace_mean_what_their_links_point_to(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("")
    (tmp_path / "tool").symlink_to("real")
    rules = [{"exe": f"{tmp_path}/tool", "rule": "a"}, {"exe": "/bin/sh", "rule": "b"}]
    assert [rule["exe"] for rule in _behind_links(rules, str(tmp_path))] == [f"{tmp_path}/real", "/bin/sh"]
    assert _behind_links(rules, "") == rules


def test_words_of_a_register_are_signed() -> None:
    assert _signed(0xFFFFFF9C) == -100
    assert _signed(0x1_0000_0005) == 5
