# SPDX-License-Identifier: MIT
"""The frame parser against spec/frames/vectors.json."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from agentbox.guest.guard.lanes import Lanes
from agentbox.guest.guard.randomness import Randomness
from agentbox.trace.frames import FrameError, FrameParser, Request, answer, encode, request_of
from tests.nodes import name, nodes

VECTORS = json.loads((Path(__file__).parents[2] / "spec/frames/vectors.json").read_text(encoding="utf-8"))


class _OneLane:
    """A process whose caller is always in one lane."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.drawn = -1

    def here(self) -> _OneLane:
        return self

    def number(self, _lane: object, _mark: str) -> int:
        self.drawn += 1
        return self.drawn


def named(group: str) -> Any:
    return pytest.mark.parametrize("vector", VECTORS[group], ids=lambda vector: vector["name"])


def feed_all(parser: FrameParser, chunks: list[str]) -> list[dict[str, Any]]:
    return [message for chunk in chunks for message in parser.feed(bytes.fromhex(chunk))]


@named("streams")
def test_stream_gives_its_messages(vector: dict[str, Any]) -> None:
    parser = FrameParser()
    assert feed_all(parser, vector["chunks"]) == vector["messages"]
    assert parser.is_between_frames is not vector.get("unfinished", False)


@named("hostile")
def test_hostile_stream_is_refused_with_its_word_and_for_ever(vector: dict[str, Any]) -> None:
    parser = FrameParser()
    with pytest.raises(FrameError) as caught:
        feed_all(parser, vector["chunks"])
    assert caught.value.reason == vector["error"]
    with pytest.raises(FrameError):
        list(parser.feed(encode({"id": 1})))


@named("requests")
def test_message_is_a_request_or_is_refused(vector: dict[str, Any]) -> None:
    if "error" in vector:
        with pytest.raises(FrameError) as caught:
            request_of(vector["message"])
        assert caught.value.reason == vector["error"]
        return
    request = request_of(vector["message"])
    assert isinstance(request, Request)
    assert request_of(request.fields()) == request


@named("answers")
def test_answer_has_the_members_of_its_kind(vector: dict[str, Any]) -> None:
    given = dict(vector["answer"])
    frame = answer(given.pop("id"), **given)
    assert list(FrameParser().feed(frame)) == [vector["answer"]]


@named("draws")
def test_draws_of_a_lane_follow_from_the_seed(vector: dict[str, Any]) -> None:
    lanes = _OneLane(vector["lane"])
    randomness = Randomness(cast("Lanes", lanes), bytes.fromhex(vector["seed"]), hashlib.sha256)
    assert [randomness.draw(size).hex() for size in vector["sizes"]] == vector["bytes"]


@pytest.mark.parametrize("node", nodes(), ids=name)
def test_node_passes_the_same_vectors(node: str) -> None:
    script = Path(__file__).with_name("frames.mjs")
    done = subprocess.run([node, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(
        sum(len(VECTORS[group]) for group in ("streams", "hostile", "requests", "answers", "draws"))
    )
