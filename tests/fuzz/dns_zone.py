# SPDX-License-Identifier: MIT
"""A box's name server between its rules and hostile questions: what may leave, and what comes back."""

from __future__ import annotations

from agentbox.egress import dns
from agentbox.egress.events import EgressEvent
from agentbox.egress.names import SyntheticNames
from agentbox.egress.rules import EgressRules
from agentbox.egress.upstream import Found
from agentbox.egress.zone import Wanted, Zone
from agentbox.policy.parser import parse
from tests.fuzz.dns import QUERIES, TOKENS
from tests.fuzz.target import Target

_RULES = EgressRules.of(parse("net: allowed.example, *.wide.example:443\ndeny: net no.wide.example", root="/"))
_FOUND = (Found(("93.184.216.34", "2606:2800::1")), Found(exists=False), Found(failure="x" * 400), Found())
_NAMES = SyntheticNames(limit=64)
_EVENTS: list[EgressEvent] = []
_ZONE = Zone(_NAMES, _EVENTS.append)


def _check(data: bytes) -> None:
    _EVENTS.clear()
    answer = _ZONE.answer(data, _RULES)
    if isinstance(answer, Wanted):
        # Only this name would ever be told to the upstream.
        name = answer.name
        assert name == "allowed.example" or (name.endswith(".wide.example") and name != "no.wide.example")
        assert answer.query.qtype in (dns.TYPE_A, dns.TYPE_AAAA, dns.TYPE_ANY)
        assert not _EVENTS
        for found in _FOUND:
            _fits(_ZONE.answer_found(answer, found), data)
        assert all(event.allowed for event in _EVENTS)
    elif answer is not None:
        _fits(answer, data)
        assert not any(event.allowed for event in _EVENTS)
    for event in _EVENTS:
        assert event.host.isprintable()
        assert event.host.isascii()


def _fits(answer: bytes, data: bytes) -> None:
    assert answer[:2] == data[:2]
    assert len(answer) <= dns.MAX_DATAGRAM_BYTES
    assert dns.read_query(answer) is None


_SEEDS = (
    *QUERIES,
    *(
        b"\0\1\1\0\0\1\0\0\0\0\0\0" + name + b"\0" + bytes((0, qtype)) + b"\0\1"
        for name in (
            b"\7allowed\7example", b"\1x\4wide\7example", b"\2no\4wide\7example", b"\4evil\4test", b"\x09localhost",
            b"\0010\0011\00218\003198\7in-addr\4arpa", b"\0018" * 32 + b"\3ip6\4arpa",
        )
        for qtype in (1, 12, 28, 252, 255)
    ),
)  # fmt: skip

TARGETS = (Target("dns-zone", _check, _SEEDS, (*TOKENS, b"\7allowed", b"\4wide\7example\0", b"\x0fallowed.example\0")),)
