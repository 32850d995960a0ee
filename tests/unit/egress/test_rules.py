# SPDX-License-Identifier: MIT
"""What a box may reach, asked as the gateway asks."""

from __future__ import annotations

import socket

import pytest

from agentbox.egress.machine import is_own_address
from agentbox.egress.rules import EgressRules
from agentbox.policy.document import intersect
from agentbox.policy.parser import parse
from tests.conftest import not_here

PUBLIC = "93.184.216.34"


def rules(text: str, allowlist: list[str] | None = None, **options: object) -> EgressRules:
    options.setdefault("is_own", lambda address: False)
    return EgressRules.of(parse(text, root="/w"), allowlist, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "host", "port", "allowed"),
    [
        ("*.shop.test", "www.shop.test", 443, True),
        ("*.shop.test", "deep.www.shop.test", 443, True),
        ("*.shop.test", "WWW.Shop.TEST.", 443, True),
        ("*.shop.test", "shop.test", 443, False),
        ("*.shop.test", "badshop.test", 443, False),
        ("*.shop.test", "www.shop.test.evil.test", 443, False),
        ("shop.test", "shop.test", 8443, True),
        ("shop.test", "SHOP.test.", 443, True),
        ("shop.test", "www.shop.test", 443, False),
        ("shop.test", "shopatest", 443, False),
        ("shop.test", "shop.test..", 443, False),
        ("shop.test", "shop.test@evil.test", 443, False),
        ("shop.test", "evil.test#shop.test", 443, False),
        ("shop.test", "evil.test/shop.test", 443, False),
        ("shop.test", "shop.test\0.evil.test", 443, False),
        ("shop.test", "shop.test\n", 443, False),
        ("shop.test", " shop.test", 443, False),
        ("shop.test", "", 443, False),
        ("shop.test", ".", 443, False),
        ("shop.test:443", "shop.test", 443, True),
        ("shop.test:443", "shop.test", 22, False),
        ("shop.test", "shop.test", 0, False),
        ("shop.test", "shop.test", 65536, False),
        ("*", "anything.test", 443, True),
        ("*", PUBLIC, 443, True),
        ("*", "localhost", 443, False),
        ("*", "10.1.2.3", 443, False),
        ("*", "169.254.169.254", 80, False),
        ("*", "::ffff:169.254.169.254", 80, False),
        ("*", "fd00::1", 80, False),
        ("*.test", "169.254.169.254", 80, False),
        ("127.0.0.1:8080", "127.0.0.1", 8080, True),
        ("127.0.0.1:8080", "127.0.0.1", 8081, False),
        ("127.0.0.1:8080", "127.0.0.2", 8080, False),
        ("127.0.0.1", "2130706433", 80, False),
        ("127.0.0.1", "0x7f000001", 80, False),
        ("127.0.0.1", "0177.0.0.1", 80, False),
        ("127.0.0.1", "127.1", 80, False),
        ("127.0.0.1", "::ffff:127.0.0.1", 80, True),
        ("10.0.0.1", "10.0.0.1", 80, True),
        ("cidr/10.0.0.0/8:80", "10.9.9.9", 80, True),
        ("cidr/10.0.0.0/8:80", "11.0.0.1", 80, False),
        ("[::1]:443", "::1", 443, True),
        ("[::1]:443", "0:0:0:0:0:0:0:1", 443, True),
        ("xn--bcher-kva.test", "xn--bcher-kva.test", 443, True),
        ("xn--bcher-kva.test", "b\u00fccher.test", 443, False),
    ],
)
def test_connection_is_allowed_to_what_the_rule_says_and_nothing_else(
    rule: str, host: str, port: int, allowed: bool
) -> None:
    verdict = rules(f"net: {rule}").connect(host, port)
    assert verdict.allowed is allowed
    assert verdict.rule == (f"net: {rule}" if allowed else None)
    assert bool(verdict.reason)


def test_name_is_looked_up_when_some_port_of_it_may_be_connected_to() -> None:
    some = rules("net: a.test:443, *.b.test\ndeny: net no.b.test")
    assert [some.resolve(name).allowed for name in ("A.test.", "x.b.test", "no.b.test", "b.test", "c.test")] == [
        True, True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("allowlist", [None, []])
def test_nothing_is_allowed_without_policy_and_entries(allowlist: list[str] | None) -> None:
    nothing = EgressRules.of(None, allowlist)
    assert not nothing
    assert not nothing.resolve("a.test").allowed
    assert not nothing.connect(PUBLIC, 443).allowed
    assert not nothing.unix("/run/x").allowed


@pytest.mark.parametrize(
    "entry", ["", " ", "a.test:0", "a.test:x", "unix:/run/x", "*", "cidr/10.0.0.0/8", "a b", "1.2"]
)
def test_entry_that_is_no_host_is_an_error(entry: str) -> None:
    with pytest.raises(ValueError, match=r"entry|address|host"):
        EgressRules.of(None, [entry])


def test_allowlist_allows_its_hosts_and_ports() -> None:
    listed = EgressRules.of(None, ["A.test", "b.test:443", "10.0.0.9:80"], is_own=lambda _: False)
    assert listed
    assert listed.connect("a.test", 1234, PUBLIC).allowed
    assert listed.connect("b.test", 443, PUBLIC).allowed
    assert not listed.connect("b.test", 80, PUBLIC).allowed
    assert not listed.connect("www.a.test", 443, PUBLIC).allowed
    assert listed.connect("10.0.0.9", 80).allowed


def test_policy_and_allowlist_must_both_allow() -> None:
    both = rules("net: a.test, b.test", ["b.test:443", "c.test"])
    allowed = {
        (host, port)
        for host in ("a.test", "b.test", "c.test")
        for port in (80, 443)
        if both.connect(host, port, PUBLIC).allowed
    }
    assert allowed == {("b.test", 443)}


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.5", "192.168.1.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
     "255.255.255.255", "::1", "::", "fe80::1", "fd00::1", "::ffff:10.0.0.5", "64:ff9b::a00:5", "2002:a00:5::",
     "ff02::1"],
)  # fmt: skip
def test_name_that_leads_to_a_local_address_is_refused(address: str) -> None:
    verdict = rules("net: a.test\nnet: *").connect("a.test", 443, address)
    assert not verdict.allowed
    assert "must name itself" in verdict.reason


def test_refusal_of_a_local_address_names_the_rule_for_the_address() -> None:
    assert rules("net: a.test").connect("a.test", 443, "10.0.0.5").rule_missing == "net: 10.0.0.5:443"
    assert rules("net: a.test").connect("a.test", 443, "fd00::5").rule_missing == "net: [fd00::5]:443"
    assert rules("net: a.test").connect("10.0.0.5", 443).rule_missing == "net: 10.0.0.5:443"


def test_name_may_lead_to_a_local_address_that_a_rule_names() -> None:
    named = rules("net: a.test, 10.0.0.5:443")
    assert named.connect("a.test", 443, "10.0.0.5").allowed
    assert not named.connect("a.test", 80, "10.0.0.5").allowed
    assert not named.connect("b.test", 443, "10.0.0.5").allowed
    assert not named.connect("a.test", 443, "10.0.0.6").allowed


def test_public_address_of_this_machine_needs_a_rule_that_names_it() -> None:
    def is_own(address: str) -> bool:
        return address == PUBLIC

    star = rules("net: *", is_own=is_own)
    for verdict in (star.connect(PUBLIC, 80), star.connect("a.test", 80, PUBLIC)):
        assert not verdict.allowed
        assert "of this machine" in verdict.reason
        assert verdict.rule_missing == f"net: {PUBLIC}:80"
    assert star.connect("a.test", 80, "93.184.216.35").allowed
    assert rules(f"net: {PUBLIC}:80", is_own=is_own).connect(PUBLIC, 80).allowed
    assert rules(f"net: *\nnet: cidr/{PUBLIC}/32", is_own=is_own).connect("a.test", 80, PUBLIC).allowed


def test_own_addresses_are_those_that_this_machine_answers_for() -> None:
    assert is_own_address("127.0.0.1")
    assert is_own_address("127.9.9.9")
    assert is_own_address("::1")
    assert not is_own_address("198.51.100.77")
    assert not is_own_address("2001:db8::77")


def test_address_that_this_machine_sends_from_is_its_own() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        try:
            sending.connect(("198.51.100.77", 9))
        except OSError:
            not_here("this machine has no route to others")
        assert is_own_address(sending.getsockname()[0])


@pytest.mark.parametrize("host", ["a..test", "x\0y", "b\u00fccher.test", "2130706433", "", "-" * 300])
def test_what_is_no_host_is_refused_without_a_rule_to_add(host: str) -> None:
    for verdict in (rules("net: *").resolve(host), rules("net: *").connect(host, 80)):
        assert not verdict.allowed
        assert verdict.rule_missing is None
        assert verdict.hint


def test_denial_that_wins_is_named() -> None:
    verdict = rules("net: *.a.test\ndeny: net x.a.test").connect("x.a.test", 443)
    assert not verdict.allowed
    assert verdict.rule == "deny: net x.a.test"
    assert verdict.rule_missing is None
    assert "wins" in verdict.hint


@pytest.mark.parametrize(
    ("made", "hint"),
    [
        (lambda: rules("net: a.test"), "add `net: b.test:443` to the policy"),
        (lambda: EgressRules.of(None, ["a.test"]), "add 'b.test:443' to egress_allowlist"),
        (lambda: rules("net: b.test", ["a.test"]), "add 'b.test:443' to egress_allowlist"),
        (lambda: rules("net: a.test", ["a.test"]), "add `net: b.test:443` to the policy, and to egress_allowlist"),
        (
            lambda: EgressRules.of(intersect(parse("net: *", root="/"), parse("net: a.test", root="/"))),
            "the operator's policy does not allow it: ask the operator for `net: b.test:443`",
        ),
    ],
)
def test_hint_says_where_the_missing_rule_belongs(made: object, hint: str) -> None:
    verdict = made().connect("b.test", 443)  # type: ignore[operator]
    assert verdict.rule_missing == "net: b.test:443"
    assert verdict.hint == hint


@pytest.mark.parametrize("host", ["b.test", "B.Test.", "10.0.0.5", "fd00::1", "::1", "_srv.b.test"])
def test_missing_rule_that_is_added_allows_it(host: str) -> None:
    missing = rules("net: a.test").connect(host, 443).rule_missing
    assert missing is not None
    assert rules(missing).connect(host, 443).allowed
    missing = rules("net: a.test").resolve(host).rule_missing
    assert missing is not None
    assert rules(missing).resolve(host).allowed


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_rate_counts_connections_on_the_given_clock() -> None:
    clock = Clock()
    rated = rules("net: a.test @2/min", clock=clock)
    assert [rated.connect("a.test", 443, PUBLIC).allowed for _ in range(3)] == [True, True, False]
    verdict = rated.connect("a.test", 443, PUBLIC)
    assert verdict.rule == "net: a.test @2/min"
    assert verdict.rule_missing is None
    clock.now += 60.1
    assert rated.connect("a.test", 443, PUBLIC).allowed


def test_asking_without_counting_uses_nothing_up_and_a_full_rate_lets_what_stands_go_on() -> None:
    rated = rules("net: a.test @1/min")
    assert all(rated.connect("a.test", 443, counted=False).allowed for _ in range(5))
    assert rated.connect("a.test", 443, PUBLIC).allowed
    assert rated.stands("a.test", 443, PUBLIC)
    assert not rated.connect("a.test", 443, PUBLIC).allowed
    assert not rated.stands("b.test", 443)


def test_denied_connection_does_not_use_up_a_rate() -> None:
    rated = rules("net: a.test @1/min")
    assert not rated.connect("a.test", 443, "10.0.0.1").allowed
    assert rated.connect("a.test", 443, PUBLIC).allowed


def test_change_of_rules_does_not_refill_a_rate() -> None:
    former = rules("net: a.test @1/min")
    assert former.connect("a.test", 443, PUBLIC).allowed
    later = rules("net: a.test @1/min, b.test").continued_from(former)
    assert not later.connect("a.test", 443, PUBLIC).allowed
    assert later.connect("b.test", 443, PUBLIC).allowed


def test_ports_of_the_own_loopback_are_those_that_rules_name() -> None:
    text = "net: 127.0.0.1:8080, [::1]:8081, localhost:8082, 127.0.0.1, a.test:8083, 127.0.0.9:8084\n"
    assert rules(text).loopback_ports == {8080, 8081, 8082}
    assert rules(text + "deny: net 127.0.0.1:8080").loopback_ports == {8081, 8082}
    assert rules(text, ["127.0.0.1:8080"]).loopback_ports == {8080}
    assert rules("net: *").loopback_ports == frozenset()


def test_sockets_are_those_that_rules_name() -> None:
    text = "net: unix:/run/a.sock, unix:/run/*.s, unix:./b.sock, unix:@abs"
    some = rules(text + "\ndeny: net unix:/w/b.sock")
    assert some.unix_paths == ("/run/a.sock",)
    assert some.unix("/run/a.sock").allowed
    assert some.unix("/run/x.s").allowed
    assert some.unix("@abs").allowed
    refused = some.unix("/run/other")
    assert not refused.allowed
    assert refused.rule_missing == "net: unix:/run/other"
    assert rules("net: unix:/run/other").unix("/run/other").allowed
    assert some.unix("/run/\x1b[m").rule_missing is None
