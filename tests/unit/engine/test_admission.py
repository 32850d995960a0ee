# SPDX-License-Identifier: MIT
from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from agentbox.engine.admission import Admission
from agentbox.errors import OverloadedError, QueueTimeoutError


@dataclass
class Clock:
    """Time that passes only when told to."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class House:
    """Runs that are asked for by name, and end when told to; `begun` and `ended` say which did, in order."""

    admission: Admission
    begun: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    refused: dict[str, OverloadedError] = field(default_factory=dict)
    waited: dict[str, float] = field(default_factory=dict)
    _release: dict[str, asyncio.Event] = field(default_factory=dict)
    _going: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def ask(self, *names: str) -> None:
        """Ask for runs, named by their key and anything after it: `a1` is a run of key `a`."""
        for name in names:
            self._release[name] = asyncio.Event()
            self._going[name] = asyncio.create_task(self._run(name))
        await self.settle()

    async def _run(self, name: str) -> None:
        try:
            async with self.admission.place(name[0]) as place:
                self.begun.append(name)
                self.waited[name] = place.waited_seconds
                await self._release[name].wait()
                self.ended.append(name)
        except OverloadedError as error:
            self.refused[name] = error

    async def end(self, *names: str) -> None:
        """Let runs end, one after the other."""
        for name in names:
            self._release[name].set()
            await self._going[name]
            await self.settle()

    async def cancel(self, *names: str) -> None:
        for name in names:
            self._going[name].cancel()
        await asyncio.gather(*(self._going[name] for name in names), return_exceptions=True)
        await self.settle()

    async def end_all(self) -> None:
        """End the oldest run at work until none is left."""
        while at_work := [name for name in self.begun if name not in self.ended]:
            await self.end(at_work[0])

    @staticmethod
    async def settle() -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def house(places: int, queue: int, **options: object) -> House:
    return House(Admission(places, queue, **options))  # type: ignore[arg-type]


async def test_no_more_runs_work_at_once_than_there_are_places() -> None:
    admission = Admission(3, 100)
    most = 0

    async def run() -> None:
        nonlocal most
        async with admission.place("a"):
            most = max(most, admission.working)
            await asyncio.sleep(0)

    await asyncio.gather(*(run() for _ in range(40)))
    assert most == 3
    assert (admission.working, admission.waiting) == (0, 0)


async def test_a_free_place_is_taken_without_a_turn_of_the_loop() -> None:
    place = Admission(1, 0).place("a")
    with pytest.raises(StopIteration) as entered:
        place.__aenter__().send(None)
    assert entered.value.value.waited_seconds == 0.0


async def test_runs_of_one_key_begin_in_the_order_in_which_they_were_asked_for() -> None:
    runs = house(2, 100)
    names = [f"a{number}" for number in range(20)]
    await runs.ask(*names)
    await runs.end_all()
    assert runs.begun == runs.ended == names


async def test_a_single_run_of_another_key_begins_at_the_next_end_of_a_run_of_one_that_floods() -> None:
    runs = house(1, 1000)
    await runs.ask(*(f"a{number}" for number in range(500)))
    await runs.end("a0", "a1")
    await runs.ask("b0")
    await runs.end("a2")
    assert runs.begun[-1] == "b0"


async def test_two_floods_and_a_single_run_each_get_every_third_place() -> None:
    runs = house(1, 1000)
    await runs.ask(*(f"a{number}" for number in range(50)), *(f"b{number}" for number in range(50)))
    for _ in range(4):
        single = f"c{len(runs.begun)}"
        await runs.ask(single)
        before = len(runs.begun)
        while single not in runs.begun:
            await runs.end(runs.begun[-1])
        assert len(runs.begun) - before <= 2
        await runs.end(single)


async def test_keys_that_ask_for_one_run_after_the_other_do_not_keep_a_third_key_waiting() -> None:
    runs = house(1, 100)
    await runs.ask("b0", "c0", "a0")
    for number in range(1, 6):
        last = runs.begun[-1]
        await runs.end(last)
        await runs.ask(f"{last[0]}{number}")
    assert "a0" in runs.begun


async def test_places_are_shared_by_what_keys_hold_and_not_by_what_they_ask_for() -> None:
    runs = house(4, 100)
    await runs.ask(*(f"a{number}" for number in range(20)))
    await runs.ask(*(f"b{number}" for number in range(3)))
    await runs.end("a0", "a1")
    at_work = Counter(name[0] for name in runs.begun if name not in runs.ended)
    assert at_work == {"a": 2, "b": 2}


async def test_a_run_that_finds_the_queue_full_is_told_to_come_back() -> None:
    runs = house(1, 1)
    await runs.ask("a0", "a1", "a2")
    assert list(runs.refused) == ["a2"]
    assert runs.refused["a2"].data["retry_after_seconds"] == 1
    assert "AGENTBOX_MAX_QUEUED_RUNS" in runs.refused["a2"].hint
    await runs.end_all()
    assert runs.ended == ["a0", "a1"]


async def test_what_is_refused_on_entering_is_refused_on_asking_too() -> None:
    runs = house(1, 2)
    runs.admission.check("a")
    await runs.ask("a0", "a1", "a2")
    with pytest.raises(OverloadedError):
        runs.admission.check("a")
    runs.admission.check("b")


async def test_time_to_come_back_follows_the_rate_at_which_runs_end() -> None:
    clock = Clock()
    runs = house(1, 10, clock=clock)
    await runs.ask(*(f"a{number}" for number in range(11)))
    for number in range(5):
        clock.now += 4.0
        await runs.end(f"a{number}")
        await runs.ask(f"a{number + 11}")
    await runs.ask("a99")
    assert runs.refused["a99"].data["retry_after_seconds"] == 44


async def test_a_queue_that_has_come_to_a_halt_says_a_longer_time_the_longer_it_stands() -> None:
    clock = Clock()
    runs = house(1, 0, clock=clock)
    await runs.ask("a0")
    found = []
    for number, later in enumerate((0.0, 7.0, 5.0, 10_000.0)):
        clock.now += later
        await runs.ask(f"b{number}")
        found.append(runs.refused[f"b{number}"].data["retry_after_seconds"])
    assert found == [1, 7, 12, 300]


async def test_a_key_that_has_its_own_number_waiting_is_refused_while_others_are_not() -> None:
    runs = house(1, 10, per_key=2)
    await runs.ask("a0", "a1", "a2", "a3", "b0", "b1", "b2")
    assert list(runs.refused) == ["a3", "b2"]
    assert "AGENTBOX_QUEUE_RUNS_PER_KEY" in runs.refused["a3"].hint
    await runs.end_all()
    assert Counter(runs.ended) == Counter(["a0", "a1", "a2", "b0", "b1"])


async def test_a_full_queue_takes_another_key_in_for_the_newest_run_of_the_one_that_filled_it() -> None:
    runs = house(1, 4)
    await runs.ask("a0", "a1", "a2", "a3", "a4")
    await runs.ask("b0", "b1", "b2")
    assert set(runs.refused) == {"a4", "a3", "b2"}
    assert runs.admission.waiting == 4
    await runs.end_all()
    assert Counter(runs.ended) == Counter(["a0", "a1", "a2", "b0", "b1"])


async def test_a_run_that_gives_up_waiting_leaves_the_queue_and_never_begins() -> None:
    runs = house(1, 5)
    await runs.ask("a0", "a1", "a2")
    assert runs.admission.waiting == 2
    await runs.cancel("a1")
    assert runs.admission.waiting == 1
    await runs.end_all()
    assert runs.begun == ["a0", "a2"]
    assert (runs.admission.working, runs.admission.waiting) == (0, 0)


async def test_a_place_that_comes_in_the_moment_of_giving_up_goes_to_the_next_run() -> None:
    runs = house(1, 5)
    await runs.ask("a0", "a1", "a2")
    runs._release["a0"].set()
    await asyncio.sleep(0)
    runs._going["a1"].cancel()
    await runs.settle()
    assert runs.begun == ["a0", "a2"]
    await runs.end_all()
    assert (runs.admission.working, runs.admission.waiting) == (0, 0)


async def test_a_run_that_waits_longer_than_it_may_is_refused_and_never_begins() -> None:
    runs = house(1, 5, timeout_seconds=0.01)
    await runs.ask("a0", "a1")
    await runs._going["a1"]
    assert isinstance(runs.refused["a1"], QueueTimeoutError)
    assert runs.refused["a1"].data["retry_after_seconds"] >= 1
    assert runs.admission.waiting == 0
    await runs.end_all()
    assert runs.begun == ["a0"]


async def test_a_run_that_had_to_wait_knows_how_long_and_one_that_had_not_waited_for_nothing() -> None:
    clock = Clock()
    runs = house(1, 5, clock=clock)
    await runs.ask("a0", "a1")
    clock.now += 2.5
    await runs.end("a0")
    assert runs.waited == {"a0": 0.0, "a1": 2.5}
    await runs.end_all()


async def test_only_a_run_that_has_to_wait_is_told_that_it_is_queued() -> None:
    admission = Admission(1, 5)
    told: list[tuple[str, int]] = []
    release = asyncio.Event()

    async def run(name: str) -> None:
        async def on_queued(waiting: int) -> None:
            told.append((name, waiting))

        async with admission.place("a", on_queued):
            await release.wait()

    runs = [asyncio.create_task(run(name)) for name in ("first", "second", "third")]
    await House.settle()
    assert told == [("second", 1), ("third", 2)]
    release.set()
    await asyncio.gather(*runs)


async def test_a_run_whose_announcement_fails_leaves_the_queue() -> None:
    admission = Admission(1, 5)

    async def broken(waiting: int) -> None:
        raise BrokenPipeError

    async with admission.place("a"):
        with pytest.raises(BrokenPipeError):
            async with admission.place("a", broken):
                pass
        assert admission.waiting == 0


@pytest.mark.parametrize("seed", range(5))
async def test_every_run_is_refused_given_up_or_run_once_whatever_happens(seed: int) -> None:
    chance = random.Random(seed)
    runs = house(3, 12, per_key=7)
    asked: list[str] = []
    given_up: set[str] = set()
    for number in range(400):
        step = chance.random()
        at_work = [name for name in runs.begun if name not in runs.ended and name not in given_up]
        if step < 0.5:
            asked.append(f"{chance.choice('abcd')}{number}")
            await runs.ask(asked[-1])
        elif step < 0.8 and at_work:
            await runs.end(chance.choice(at_work))
        elif waiting := [n for n in asked if n not in runs.refused and n not in runs.begun and n not in given_up]:
            given_up.add(chance.choice(waiting))
            await runs.cancel(*(given_up - set(runs.begun)))
        assert runs.admission.working <= 3
        assert runs.admission.waiting <= 12
        assert runs.admission.waiting == 0 or runs.admission.working == 3
    await runs.end_all()
    assert len(runs.begun) == len(set(runs.begun))
    assert set(asked) == set(runs.ended) | set(runs.refused) | given_up
    assert set(runs.ended).isdisjoint(runs.refused)
    assert set(runs.ended).isdisjoint(given_up)
    assert (runs.admission.working, runs.admission.waiting) == (0, 0)
