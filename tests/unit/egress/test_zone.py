# SPDX-License-Identifier: MIT
"""What a box's name server answers, question by question."""

from __future__ import annotations

import json

import pytest

from agentbox.egress import dns
from agentbox.egress.events import EgressEvent
from agentbox.egress.names import SyntheticNames
from agentbox.egress.rules import EgressRules
from agentbox.egress.upstream import Found
from agentbox.egress.zone import TTL_SECONDS, Wanted, Zone
from agentbox.policy.parser import parse
from tests.unit.egress.name_server import AAAA, A, Seen, message, seen, wire

NXDOMAIN, REFUSED, SERVFAIL = 3, 5, 2
ANY, PTR, TXT, MX, CNAME, HTTPS, SVCB, AXFR, IXFR = 255, 12, 16, 15, 5, 65, 64, 252, 251
BOTH = Found(("93.184.216.34", "2606:2800:220:1::1"))


class Box:
    """A zone with its rules, names and events."""

    def __init__(self, text: str = "net: allowed.test, *.wide.test:443\ndeny: net no.wide.test") -> None:
        self.rules = EgressRules.of(parse(text, root="/"))
        self.names = SyntheticNames()
        self.events: list[EgressEvent] = []
        self.zone = Zone(self.names, self.events.append)

    def now(self, data: bytes) -> Seen:
        """An answer that needs no upstream."""
        answer = self.zone.answer(data, self.rules)
        assert not isinstance(answer, Wanted), "the upstream would be asked"
        return seen(answer)

    def found(self, data: bytes, found: Found = BOTH) -> Seen:
        """An answer after the upstream was asked."""
        wanted = self.zone.answer(data, self.rules)
        assert isinstance(wanted, Wanted), "the upstream would not be asked"
        return seen(self.zone.answer_found(wanted, found))


def test_allowed_name_has_an_address_that_leads_back_to_it() -> None:
    box = Box()
    for name in ("allowed.test", "ALLOWED.Test", "x.wide.test"):
        for qtype in (A, AAAA):
            answer = box.found(message(name, qtype))
            assert answer.code == 0
            assert answer.ttls == (TTL_SECONDS,)
            (address,) = answer.addresses
            assert box.names.name_of(address) == name.lower()
            assert (":" in address) == (qtype == AAAA)
    assert all(event.allowed for event in box.events)


def test_no_address_of_the_upstream_reaches_the_box() -> None:
    box = Box()
    answers = box.found(message("allowed.test", A)).addresses + box.found(message("allowed.test", AAAA)).addresses
    assert not set(answers) & set(BOTH.addresses)


def test_question_for_anything_is_answered_with_both_addresses() -> None:
    assert len(Box().found(message("allowed.test", ANY)).addresses) == 2


@pytest.mark.parametrize(
    ("addresses", "four", "six"),
    [(("1.1.1.1",), 1, 0), (("2606::1",), 0, 1), ((), 0, 0), (("1.1.1.1", "1.1.1.2", "2606::1", "2606::2"), 1, 1)],
)
def test_name_has_the_families_that_it_has_upstream(addresses: tuple[str, ...], four: int, six: int) -> None:
    box = Box()
    for qtype, count in ((A, four), (AAAA, six)):
        answer = box.found(message("allowed.test", qtype), Found(addresses))
        assert answer.code == 0
        assert len(answer.addresses) == count


def test_allowed_name_that_does_not_exist_is_missing_and_no_denial() -> None:
    box = Box()
    answer = box.found(message("allowed.test", A, edns=1232), Found(exists=False))
    assert answer.code == NXDOMAIN
    assert answer.extended is None
    (event,) = box.events
    assert event.allowed
    assert event.reason == "the name does not exist"
    assert len(box.names) == 0


def test_failure_of_the_upstream_is_told_as_one() -> None:
    box = Box()
    answer = box.found(message("allowed.test", A, edns=1232), Found(failure="no route"))
    assert answer.code == SERVFAIL
    assert answer.extended == (22, "no route")
    assert box.events[0].reason == "no route"


@pytest.mark.parametrize("qtype", [TXT, MX, CNAME, HTTPS, SVCB, PTR, 2, 6, 33, 0, 41, 65535])
def test_other_types_of_an_allowed_name_are_absent_and_asked_of_nobody(qtype: int) -> None:
    answer = Box().now(message("allowed.test", qtype))
    assert answer.code == 0
    assert answer.addresses == answer.pointers == ()


@pytest.mark.parametrize("qtype", [A, AAAA, ANY, TXT, MX, CNAME, HTTPS, SVCB, PTR, 0, 65535])
def test_denied_name_does_not_exist_in_any_type_and_nobody_is_asked(qtype: int) -> None:
    box = Box()
    for name in (
        "c2VjcmV0.evil.test",
        "wide.test",
        "no.wide.test",
        "allowed.test.evil.test",
        "evilallowed.test",
        "test",
    ):
        assert box.now(message(name, qtype)).code == NXDOMAIN
    assert len(box.events) == 6
    assert not any(event.allowed for event in box.events)
    assert len(box.names) == 0


@pytest.mark.parametrize(
    "name",
    [
        b"\x0callowed.test\0",  # one label with a dot in it
        b"\7allowed\5test\0\0",
        b"\x08allowed\0\4test\0",
        b"\x08allowed \4test\0",
        b"\x07allowed\4te\xfft\0",
        b"\7b\xc3\xbccher\4test\0",
        b"\0",
        wire("2130706433"),
        wire("allowed.test.1"),
    ],
)
def test_bytes_that_only_look_like_an_allowed_name_are_denied(name: bytes) -> None:
    box = Box("net: *")
    answer = box.now(message(name))
    assert answer.code == NXDOMAIN
    (event,) = box.events
    assert not event.allowed
    assert event.host.isprintable()
    assert event.rule_missing is None


@pytest.mark.parametrize("text", ["net: *", "net: 10.0.0.5, 127.0.0.1"])
@pytest.mark.parametrize("address", ["10.0.0.5", "127.0.0.1"])
def test_address_spelled_as_a_name_is_no_name_even_where_a_rule_names_it(text: str, address: str) -> None:
    box = Box(text)
    answer = box.zone.answer(message(address), box.rules)
    if isinstance(answer, Wanted):
        answer = box.zone.answer_found(answer, Found(exists=False))
    assert seen(answer).code == NXDOMAIN
    assert len(box.names) == 0


def test_name_in_its_xn_form_is_a_name() -> None:
    box = Box("net: xn--bcher-kva.test")
    assert box.found(message("xn--bcher-kva.test")).code == 0


def test_denial_carries_the_object_of_the_event() -> None:
    box = Box()
    answer = box.now(message("Evil.test", edns=1232))
    assert answer.code == NXDOMAIN
    assert answer.extended is not None
    info, text = answer.extended
    assert info == 15
    assert json.loads(text) == {
        "error": "policy_denied",
        "host": "evil.test",
        "rule_missing": "net: evil.test",
        "hint": "add `net: evil.test` to the policy",
        "retry": False,
    }
    assert json.loads(text) == box.events[0].refusal()
    assert answer.question == wire("Evil.test") + b"\0\1\0\1"


def test_denial_of_the_longest_name_fits_a_datagram() -> None:
    name = ".".join(["x" * 63] * 3 + ["y" * 57])
    for edns in (None, 0, 512, 1232, 65535):
        answer = Box().now(message(name, edns=edns))
        assert answer.code == NXDOMAIN
        assert not answer.truncated


@pytest.mark.parametrize("name", ["localhost", "LocalHost", "a.localhost", "b.a.localhost"])
def test_localhost_is_the_box_itself_whatever_rules_say(name: str) -> None:
    box = Box("deny: net *")
    assert box.now(message(name, A)).addresses == ("127.0.0.1",)
    assert box.now(message(name, AAAA)).addresses == ("::1",)
    assert box.now(message(name, TXT)).code == 0
    assert box.events == []


def test_name_that_ends_like_localhost_is_another() -> None:
    assert Box().now(message("notlocalhost")).code == NXDOMAIN


def _reverse(address: str) -> str:
    import ipaddress

    return ipaddress.ip_address(address).reverse_pointer


def test_address_that_was_given_out_has_its_name() -> None:
    box = Box()
    for qtype in (A, AAAA):
        (address,) = box.found(message("allowed.test", qtype)).addresses
        for asked in (_reverse(address), _reverse(address).upper()):
            assert box.now(message(asked, PTR)).pointers == ("allowed.test",)
        assert box.now(message(_reverse(address), TXT)).pointers == ()
    for address in ("127.0.0.1", "127.3.2.1", "::1"):
        assert box.now(message(_reverse(address), PTR)).pointers == ("localhost",)


@pytest.mark.parametrize(
    "name",
    ["8.8.8.8.in-addr.arpa", "0.1.18.198.in-addr.arpa", "in-addr.arpa", "18.198.in-addr.arpa",
     "x.1.18.198.in-addr.arpa", "1.0.0.1.18.198.in-addr.arpa", "300.1.1.1.in-addr.arpa", "01.0.0.127.in-addr.arpa",
     "ip6.arpa", "0.ip6.arpa", "-.ip6.arpa", ".".join("g" * 32) + ".ip6.arpa", _reverse("fd61:6762:6f78::1")],
)  # fmt: skip
def test_any_other_address_has_no_name_and_nobody_is_asked_even_if_rules_allow_every_name(name: str) -> None:
    box = Box("net: *")
    assert box.now(message(name, PTR)).code == NXDOMAIN
    assert box.events == []


@pytest.mark.parametrize("qtype", [AXFR, IXFR])
@pytest.mark.parametrize("name", ["allowed.test", "evil.test"])
def test_zone_is_not_transferred(qtype: int, name: str) -> None:
    assert Box().now(message(name, qtype)).code == REFUSED


@pytest.mark.parametrize("qclass", [0, 2, 3, 4, 254, 255, 65535])
def test_other_classes_are_refused(qclass: int) -> None:
    assert Box().now(message("allowed.test", A, qclass=qclass)).code == REFUSED
    assert Box().now(message("version.bind", TXT, qclass=qclass)).code == REFUSED


def test_rules_of_the_moment_decide() -> None:
    box = Box()
    assert box.found(message("allowed.test")).code == 0
    box.rules = EgressRules.of(None, None)
    assert box.now(message("allowed.test")).code == NXDOMAIN


def test_message_without_header_and_answers_get_nothing() -> None:
    box = Box()
    assert box.zone.answer(b"", box.rules) is None
    assert box.zone.answer(message("evil.test", flags=0x8180), box.rules) is None
    assert dns.read_query(b"") is None
