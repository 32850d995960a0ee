# SPDX-License-Identifier: MIT
"""What the name server of a box answers, decided without I/O.

| asked for | answer |
|---|---|
| A, AAAA, ANY of an allowed name | its synthetic addresses; NXDOMAIN, no address or SERVFAIL as the upstream says |
| any other type of an allowed name | no such record; nobody is asked |
| `localhost` and names below it | 127.0.0.1 and ::1 |
| `in-addr.arpa`, `ip6.arpa` | the name of an address that was given out here, or of loopback; else NXDOMAIN |
| any other name | NXDOMAIN with an extended error that holds the denial, and an event |
| a zone transfer, a class other than IN | REFUSED |

The upstream is asked for an allowed name to learn whether it exists and in which families it has addresses, so that a
program sees a missing name as missing. No other name and no other type ever leaves.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from dataclasses import dataclass, replace

from agentbox.egress import dns
from agentbox.egress.dns import Answer, Code, ErrorInfo, ExtendedError, Query
from agentbox.egress.events import EgressEvent, OnEvent
from agentbox.egress.names import SyntheticNames
from agentbox.egress.rules import EgressRules, Verdict
from agentbox.egress.upstream import Found

TTL_SECONDS = 30
_LOCAL_NAME = "localhost"
_LOOPBACK = ("127.0.0.1", "::1")
_REVERSE_FOUR = "in-addr.arpa"
_REVERSE_SIX = "ip6.arpa"
_TRANSFERS = (dns.TYPE_AXFR, dns.TYPE_IXFR)
_ADDRESS_TYPES = (dns.TYPE_A, dns.TYPE_AAAA, dns.TYPE_ANY)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A question about the addresses of an allowed name, to be answered with what the upstream knows of the name."""

    query: Query
    name: str
    verdict: Verdict
    max_bytes: int | None


class Zone:
    """The names of one box, as far as it may see them."""

    def __init__(self, names: SyntheticNames, on_event: OnEvent) -> None:
        self._names = names
        self._on_event = on_event

    def answer(self, message: bytes, rules: EgressRules, max_bytes: int | None = None) -> bytes | Wanted | None:
        """The answer to a message under `rules`, as far as it needs no upstream; None where there must be none.

        `max_bytes` is the longest answer; without it, what a datagram to the asker may hold.
        """
        query = dns.read_query(message)
        if query is None:
            return None
        if not isinstance(query, Query):
            return dns.write_answer(query, query.code, max_bytes=max_bytes)
        if query.qclass != dns.CLASS_IN:
            return _unsupported(query, "only the class IN is answered", max_bytes)
        name = query.name.lower()
        if _is_below(name, _LOCAL_NAME):
            return self._present(query, _LOOPBACK, max_bytes)
        if _is_below(name, _REVERSE_FOUR) or _is_below(name, _REVERSE_SIX):
            return self._reverse(query, name, max_bytes)
        verdict = rules.resolve(name)
        if not verdict.allowed:
            return self._denied(query, name, verdict, max_bytes)
        if query.qtype in _TRANSFERS:
            return _unsupported(query, "there are no zone transfers", max_bytes)
        if query.qtype not in _ADDRESS_TYPES:
            return dns.write_answer(query, Code.NOERROR, max_bytes=max_bytes)
        return Wanted(query, name, verdict, max_bytes)

    def answer_found(self, wanted: Wanted, found: Found) -> bytes:
        """The answer to a question about an allowed name, and its event."""
        query, name, verdict = wanted.query, wanted.name, wanted.verdict
        event = EgressEvent("net.resolve", name, True, rule=verdict.rule, reason=verdict.reason)
        if found.failure:
            event = replace(event, reason=found.failure)
            error = ExtendedError(ErrorInfo.NO_REACHABLE_AUTHORITY, found.failure)
            answer = dns.write_answer(query, Code.SERVFAIL, error=error, max_bytes=wanted.max_bytes)
        elif not found.exists:
            event = replace(event, reason="the name does not exist")
            answer = dns.write_answer(query, Code.NXDOMAIN, max_bytes=wanted.max_bytes)
        else:
            families = dict.fromkeys(socket.AF_INET6 if ":" in it else socket.AF_INET for it in found.addresses)
            addresses = tuple(self._names.address_of(name, family) for family in families)
            answer = self._present(query, addresses, wanted.max_bytes)
        self._on_event(event)
        return answer

    def _present(self, query: Query, addresses: tuple[str, ...], max_bytes: int | None) -> bytes:
        """The answer for a name with these addresses and nothing else."""
        answers = []
        for address in map(ipaddress.ip_address, addresses):
            rtype = dns.TYPE_A if address.version == 4 else dns.TYPE_AAAA
            if query.qtype in (rtype, dns.TYPE_ANY):
                answers.append(Answer(rtype, TTL_SECONDS, address.packed))
        return dns.write_answer(query, Code.NOERROR, answers, max_bytes=max_bytes)

    def _reverse(self, query: Query, name: str, max_bytes: int | None) -> bytes:
        address = _reversed_address(name)
        pointed = None
        if address is not None:
            pointed = _LOCAL_NAME if address.is_loopback else self._names.name_of(str(address))
        if pointed is None:
            error = ExtendedError(ErrorInfo.NOT_SUPPORTED, "only addresses that stand for names here are looked up")
            return dns.write_answer(query, Code.NXDOMAIN, error=error, max_bytes=max_bytes)
        wanted = query.qtype in (dns.TYPE_PTR, dns.TYPE_ANY)
        answers = [Answer(dns.TYPE_PTR, TTL_SECONDS, dns.name_bytes(pointed))] if wanted else []
        return dns.write_answer(query, Code.NOERROR, answers, max_bytes=max_bytes)

    def _denied(self, query: Query, name: str, verdict: Verdict, max_bytes: int | None) -> bytes:
        event = EgressEvent(
            "net.resolve",
            name or ".",
            False,
            rule=verdict.rule,
            rule_missing=verdict.rule_missing,
            reason=verdict.reason,
            hint=verdict.hint,
        )
        self._on_event(event)
        error = ExtendedError(ErrorInfo.BLOCKED, json.dumps(event.refusal(), separators=(",", ":")))
        code = Code.REFUSED if query.qtype in _TRANSFERS else Code.NXDOMAIN
        return dns.write_answer(query, code, error=error, max_bytes=max_bytes)


def _unsupported(query: Query, why: str, max_bytes: int | None) -> bytes:
    error = ExtendedError(ErrorInfo.NOT_SUPPORTED, why)
    return dns.write_answer(query, Code.REFUSED, error=error, max_bytes=max_bytes)


def _is_below(name: str, domain: str) -> bool:
    return name == domain or name.endswith(f".{domain}")


def _reversed_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address of a name below `in-addr.arpa` or `ip6.arpa`; None where it is not one of a whole address."""
    if name.endswith(f".{_REVERSE_FOUR}"):
        parts = name.removesuffix(f".{_REVERSE_FOUR}").split(".")
        text = ".".join(reversed(parts))
    else:
        digits = name.removesuffix(f".{_REVERSE_SIX}").split(".")
        if len(digits) != 32 or any(len(digit) != 1 for digit in digits):
            return None
        text = ":".join("".join(reversed(digits))[at : at + 4] for at in range(0, 32, 4))
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
