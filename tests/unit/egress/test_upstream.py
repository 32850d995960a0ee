# SPDX-License-Identifier: MIT
"""Looking names up: at a real name server on loopback, and with the system's resolver."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from agentbox.egress.stub import Server
from agentbox.egress.upstream import Found, Upstream
from agentbox.errors import ConfigError
from tests.ports import DATAGRAM, port_that_refuses
from tests.unit.egress.name_server import AAAA, A, NameServer, Said

FOUR, SIX = "93.184.216.34", "2606:2800:220:1::1"


def always(said: Said) -> Callable[[str, int], Said]:
    return lambda name, qtype: said


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_both_families_are_found_through_an_alias() -> None:
    async with NameServer(always(Said((FOUR, SIX), alias="edge.test"))) as server:
        assert await Upstream(server.address).lookup("a.test") == Found((FOUR, SIX))
    assert sorted((name.lower(), qtype) for name, qtype in server.asked) == [("a.test", A), ("a.test", AAAA)]


async def test_name_that_does_not_exist_and_name_without_address_are_told_apart() -> None:
    async with NameServer(lambda name, qtype: Said(code=3 if name == "no.test" else 0)) as server:
        upstream = Upstream(server.address)
        assert await upstream.lookup("no.test") == Found(exists=False)
        assert await upstream.lookup("empty.test") == Found()


async def test_answer_is_asked_for_once_and_again_when_its_time_is_over() -> None:
    clock = Clock()
    async with NameServer(always(Said((FOUR,), ttl=60))) as server:
        upstream = Upstream(server.address, clock=clock)
        for name in ("a.test", "A.test.", "a.TEST"):
            assert (await upstream.lookup(name)).addresses == (FOUR,)
        assert len(server.asked) == 2
        clock.now += 61
        await upstream.lookup("a.test")
        assert len(server.asked) == 4


@pytest.mark.parametrize(("ttl", "kept", "over"), [(0, 4.9, 5.1), (1 << 30, 299, 301)])
async def test_time_of_an_answer_is_held_within_bounds(ttl: int, kept: float, over: float) -> None:
    clock = Clock()
    async with NameServer(always(Said((FOUR,), ttl=ttl))) as server:
        upstream = Upstream(server.address, clock=clock)
        await upstream.lookup("a.test")
        clock.now += kept
        assert upstream.known("a.test") == Found((FOUR,))
        clock.now += over - kept
        assert upstream.known("a.test") is None


@pytest.mark.parametrize("said", [Said(code=3), Said(code=2), Said(code=5)])
async def test_missing_names_and_failures_are_kept_for_a_short_time(said: Said) -> None:
    clock = Clock()
    async with NameServer(always(said)) as server:
        upstream = Upstream(server.address, clock=clock)
        found = await upstream.lookup("a.test")
        asked = len(server.asked)
        assert await upstream.lookup("a.test") == found
        assert len(server.asked) == asked
        clock.now += 11
        await upstream.lookup("a.test")
        assert len(server.asked) > asked


async def test_what_is_kept_is_bounded() -> None:
    async with NameServer(always(Said((FOUR,)))) as server:
        upstream = Upstream(server.address, max_kept=10)
        for number in range(30):
            await upstream.lookup(f"{number}.test")
        assert sum(upstream.known(f"{number}.test") is not None for number in range(30)) == 10
        assert upstream.known("29.test") is not None


async def test_many_who_ask_at_once_share_one_question() -> None:
    gate = asyncio.Event()
    async with NameServer(always(Said((FOUR,))), gate=gate.wait) as server:
        upstream = Upstream(server.address)
        asking = [asyncio.create_task(upstream.lookup("a.test")) for _ in range(50)]
        while len(server.asked) < 2:
            await asyncio.sleep(0)
        asking[0].cancel()
        gate.set()
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert found[1:] == [Found((FOUR,))] * 49
        assert len(server.asked) == 2


async def test_each_question_has_a_port_an_id_and_a_case_of_its_own() -> None:
    async with NameServer(always(Said((FOUR,)))) as server:
        upstream = Upstream(server.address)
        for number in range(20):
            await upstream.lookup(f"{number}.a-name-with-letters.test")
        assert len(set(server.ports_asked_from)) > 30
        assert len({name.partition(".")[2] for name, _ in server.asked}) > 30


async def test_answer_too_long_for_a_datagram_is_fetched_by_tcp() -> None:
    async with NameServer(always(Said((FOUR, SIX), truncated=True))) as server:
        assert await Upstream(server.address).lookup("a.test") == Found((FOUR, SIX))
        assert server.over_tcp == 2


@pytest.mark.parametrize("forged", [3, 40])
async def test_forged_replies_are_not_believed(forged: int) -> None:
    async with NameServer(always(Said((FOUR,), forged_first=forged))) as server:
        assert await Upstream(server.address).lookup("a.test") == Found((FOUR,))
        assert (server.over_tcp > 0) == (forged > 16)


async def test_server_that_does_not_keep_the_case_is_asked_again_without_delay() -> None:
    async with NameServer(always(Said((FOUR, SIX), lower_case=True))) as server:
        found = await Upstream(server.address, deadline_seconds=0.9).lookup("a-name-with-letters.test")
        assert found == Found((FOUR, SIX))
        assert len(server.asked) == 4


async def test_server_without_edns_is_asked_without_it() -> None:
    async with NameServer(always(Said((FOUR,), only_with_edns=False))) as server:
        assert await Upstream(server.address).lookup("a.test") == Found((FOUR,))


@pytest.mark.parametrize(
    "said",
    [Said(code=2), Said(code=5), Said(code=9), Said((FOUR,), code=4)],
    ids=["SERVFAIL", "REFUSED", "9", "NOTIMP"],
)
async def test_server_that_fails_is_a_failure_and_not_a_missing_name(said: Said) -> None:
    async with NameServer(always(said)) as server:
        found = await Upstream(server.address).lookup("a.test")
        assert found.exists
        assert found.addresses == ()
        assert "127.0.0.1 gave no answer: it answered" in found.failure


async def test_family_that_fails_does_not_hide_the_other() -> None:
    async with NameServer(lambda name, qtype: Said((FOUR,)) if qtype == A else Said(code=2)) as server:
        assert await Upstream(server.address).lookup("a.test") == Found((FOUR,))


async def test_nobody_at_the_address_is_a_failure() -> None:
    with port_that_refuses(DATAGRAM) as port:
        found = await Upstream(f"127.0.0.1:{port}").lookup("a.test")
    assert "refused" in found.failure


async def test_lost_datagram_is_sent_again() -> None:
    asked: list[int] = []

    def loses_the_first(name: str, qtype: int) -> Said:
        asked.append(qtype)
        return Said((FOUR, SIX), silent=asked.count(qtype) == 1)

    async with NameServer(loses_the_first) as server:
        assert await Upstream(server.address).lookup("a.test") == Found((FOUR, SIX))


async def test_silent_server_is_a_failure_when_the_deadline_is_over() -> None:
    async with NameServer(always(Said(silent=True))) as server:
        upstream = Upstream(server.address, deadline_seconds=0.05)
        assert (await upstream.lookup("a.test")).failure == "the name server did not answer in time"


async def test_number_of_names_asked_for_at_once_is_bounded() -> None:
    gate = asyncio.Event()
    async with NameServer(always(Said((FOUR,))), gate=gate.wait) as server:
        upstream = Upstream(server.address, max_asking=2)
        asking = [asyncio.create_task(upstream.lookup(f"{number}.test")) for number in range(20)]
        while len(server.asked) < 4:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(server.asked) == 4
        gate.set()
        found = await asyncio.gather(*asking)
        assert found.count(Found(failure="too many names are being looked up")) == 12
        assert found.count(Found((FOUR,))) == 8


async def test_closing_ends_the_waiting_with_a_failure() -> None:
    gate = asyncio.Event()
    async with NameServer(always(Said((FOUR,))), gate=gate.wait) as server:
        upstream = Upstream(server.address)
        asking = [asyncio.create_task(upstream.lookup(name)) for name in ("a.test", "a.test", "b.test")]
        while len(server.asked) < 4:
            await asyncio.sleep(0)
        await upstream.close()
        assert {(await one).failure for one in asking} == {"the gateway is being closed"}
        assert (await upstream.lookup("c.test")).failure == "the gateway is being closed"


async def test_question_leaves_no_descriptor_behind() -> None:
    async with NameServer(always(Said((FOUR,), truncated=True))) as server:
        upstream = Upstream(server.address, deadline_seconds=0.2)
        await upstream.lookup("warm.test")
        before = len(os.listdir("/proc/self/fd"))
        await upstream.lookup("a.test")
        server.answer = always(Said(silent=True))
        await upstream.lookup("b.test")
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", ["", ".", "a..b", "\u00fc.test", "10.0.0.1", "2130706433", "x" * 64, "a\0b", "a b"])
async def test_what_is_no_name_is_asked_of_nobody(name: str) -> None:
    async with NameServer(always(Said((FOUR,)))) as server:
        assert await Upstream(server.address).lookup(name) == Found(exists=False)
        assert server.asked == []


@pytest.mark.parametrize("server", [None, "127.0.0.1:9"])
async def test_localhost_is_known_without_asking(server: str | None) -> None:
    assert await Upstream(server).lookup("x.LOCALHOST.") == Found(("127.0.0.1", "::1"))


async def test_hosts_file_speaks_before_the_system(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# a comment\n10.9.8.7 Build.Test build # c\nfe80::1%eth0 build.test\nno.address x\n\n1.1.1.1\n")
    clock = Clock()
    upstream = Upstream(hosts_file=str(hosts), clock=clock)
    assert await upstream.lookup("build.test") == Found(("10.9.8.7", "fe80::1"))
    assert await upstream.lookup("BUILD") == Found(("10.9.8.7",))
    hosts.write_text("10.9.8.6 build.test\n")
    clock.now += 6
    assert await upstream.lookup("build.test") == Found(("10.9.8.6",))


async def test_system_is_asked_for_the_name_as_it_is_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def getaddrinfo(host: object, port: object, *rest: object, **options: object) -> list[object]:
        asked.append(host)
        if host == b"no.test.":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if host == b"later.test.":
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if host == b"empty.test.":
            raise socket.gaierror(-5, "No address associated with hostname")
        return [
            (socket.AF_INET6, 1, 6, "", ("fe80::1%lo", 0, 0, 1)),
            (socket.AF_INET, 1, 6, "", (FOUR, 0)),
            (socket.AF_INET, 1, 6, "", (FOUR, 0)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    upstream = Upstream(hosts_file="/nonexistent")
    assert await upstream.lookup("A.test") == Found(("fe80::1", FOUR))
    assert await upstream.lookup("no.test") == Found(exists=False)
    assert await upstream.lookup("empty.test") == Found()
    assert "Temporary failure" in (await upstream.lookup("later.test")).failure
    assert asked == [b"a.test.", b"no.test.", b"empty.test.", b"later.test."]


async def test_thread_that_hangs_in_the_system_keeps_its_place_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    let_go = threading.Event()
    running = 0

    def getaddrinfo(*rest: object, **options: object) -> list[object]:
        nonlocal running
        running += 1
        let_go.wait(30)
        return [(socket.AF_INET, 1, 6, "", (FOUR, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    upstream = Upstream(hosts_file="/nonexistent", max_asking=2, deadline_seconds=0.1)
    found = await asyncio.gather(*(upstream.lookup(f"{number}.test") for number in range(5)))
    assert all(one.failure for one in found)
    assert running == 2
    let_go.set()
    while (await upstream.lookup("later.test")).failure:
        await asyncio.sleep(0.01)


async def test_real_resolver_of_the_system_answers() -> None:
    found = await Upstream(hosts_file="/nonexistent").lookup("agentbox-test.invalid")
    assert found.addresses == ()
    assert not found.exists or found.failure


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("9.9.9.9", Server("9.9.9.9", 53)),
        (" 127.0.0.1:5353 ", Server("127.0.0.1", 5353)),
        ("::1", Server("::1", 53)),
        ("[::1]", Server("::1", 53)),
        ("[2620:fe::9]:5353", Server("2620:fe::9", 5353)),
    ],
)
def test_server_is_given_by_address(text: str, server: Server) -> None:
    assert Server.parse(text) == server


@pytest.mark.parametrize(
    "text", ["", "dns.test", "1.2.3", "1.2.3.4:0", "1.2.3.4:99999", "1.2.3.4:", "[::1", "[::1]x", "[::1]:"]
)
def test_server_that_is_no_address_is_a_wrong_setting(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        Upstream(text)
    assert repr(text) in error.value.message
    assert "IP:PORT" in error.value.hint
