# SPDX-License-Identifier: MIT
"""What a recorded process tells of the programs that it started."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from agentbox.guest.guard.children import Children


class Relay:
    """A relay whose child has written all that it will write."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kept: dict[int, Any] = {}
        self.is_fed = self.has_all_input = False

    def is_over(self) -> bool:
        return True

    def settle(self) -> None:
        """There is nothing left."""

    ended = settle


class Host:
    """A host that answers when it is told to."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()
        self.told: list[str] = []

    def ask(self, kind: str, op: str, text: str, lane: str) -> tuple[None, dict[str, Any]]:
        self.asked.set()
        assert self.answers.wait(30)
        self.told.append(op)
        return None, {}


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def children(host: Host) -> Any:
    lanes = SimpleNamespace(here=lambda: SimpleNamespace(name="main"), number=lambda lane, kind: 1)
    effects = SimpleNamespace(lanes=lanes, ask=host.ask, channel=SimpleNamespace(send=lambda frame: None))
    return Children(effects, SimpleNamespace(open_again=None), SimpleNamespace(collector=None))  # type: ignore[arg-type]


def _child(children: Any) -> Any:
    child = children.new({"spawn": 7}, {"argv": ["sh"]})
    child.terminal = 2
    child.relay = Relay()
    return child


def test_nobody_goes_on_while_another_thread_still_asks_what_the_child_had_shown(host: Host, children: Any) -> None:
    child = _child(children)
    children.begin(100, child)
    child.code = 0
    passing_on = threading.Thread(target=children.tell, args=(child,))
    passing_on.start()
    assert host.asked.wait(30)
    order: list[str] = []
    going_on = threading.Thread(target=lambda: (children.reaped(100, 0), order.extend(host.told)))
    going_on.start()
    going_on.join(0.2)
    host.answers.set()
    for thread in (passing_on, going_on):
        thread.join(30)
        assert not thread.is_alive()
    assert order == ["proc.result"]
    assert host.told == ["proc.result"]


def test_a_handler_that_ends_the_process_while_its_thread_tells_does_not_wait_for_itself(
    host: Host, children: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = _child(children)
    children.begin(100, child)
    asked: list[str] = []

    def ask(kind: str, op: str, text: str, lane: str) -> tuple[None, dict[str, Any]]:
        asked.append(op)
        children.tell(child)
        return None, {}

    monkeypatch.setattr(children._effects, "ask", ask)
    child.code = 0
    children.tell(child)
    assert asked == ["proc.result"]
