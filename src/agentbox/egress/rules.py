# SPDX-License-Identifier: MIT
"""The `net:` rules of one box, asked by name, by connection and by socket; `policy.evaluation` decides.

A policy and an allowlist may both be given: both must allow. What neither gives is denied. Rates are counted here, on
the host's clock that only goes forward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from agentbox.egress.machine import is_own_address
from agentbox.models import parse_allowlist
from agentbox.policy.decision import Counters, Decision
from agentbox.policy.document import AnyPolicy, Conjunction, Policy, policies_of
from agentbox.policy.evaluation import decide
from agentbox.policy.hosts import is_special, normal_name, parse_address
from agentbox.policy.questions import Connect, Resolve, Unix
from agentbox.policy.rule import HostTarget, Place, Rule, Surroundings, UnixTarget, Value
from agentbox.policy.rules.net import read_rule

ALLOWLIST = "egress_allowlist"
_LOCAL_NAME = "localhost"
_LOOPBACK = ("127.0.0.1", "::1")
_NOWHERE = Surroundings("/", None, lambda path: path, lambda _: None, lambda _: ())


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether something is allowed and what decided it. `rule` and `rule_missing` are lines of a policy: the deciding
    one, and one that would allow it. `hint` says what would help, and is empty where it is allowed."""

    allowed: bool
    rule: str | None = None
    rule_missing: str | None = None
    reason: str = ""
    hint: str = ""


class EgressRules:
    """What one box may reach. Immutable but for the counts of rates."""

    def __init__(
        self,
        policy: Conjunction,
        sources: Sequence[str],
        *,
        is_own: Callable[[str], bool] = is_own_address,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sources` says for each of the policies how a rule gets into it; see `of`."""
        self._policy = policy
        self._sources = tuple(sources)
        self._is_own = is_own
        self._clock = clock
        self._counters = Counters()
        self.loopback_ports = frozenset(self._loopback_ports())
        self.unix_paths = tuple(dict.fromkeys(self._unix_paths()))

    @classmethod
    def of(
        cls,
        policy: AnyPolicy | None,
        allowlist: Sequence[str] | None = None,
        *,
        operator: Sequence[str] | None = None,
        public_only: bool = False,
        is_own: Callable[[str], bool] = is_own_address,
        clock: Callable[[], float] = time.monotonic,
    ) -> EgressRules:
        """The rules of a policy, of an allowlist of `host[:port]` entries, or of both; of neither, nothing is allowed.

        Of several policies in one the first is the run's own, the others are its operator's. `operator` is a list of
        entries that must allow too, and with `public_only` no rule opens a private address, a port of this machine or a
        UNIX socket. `is_own` tells this machine's addresses, `clock` gives seconds. Raises ValueError that names an
        entry which is no host.
        """
        policies = [] if policy is None else list(policies_of(policy))
        sources = ["policy", *["operator"] * (len(policies) - 1)][: len(policies)]
        if allowlist is not None or not policies:
            policies.append(Policy(tuple(_entries(allowlist or ()))))
            sources.append(ALLOWLIST)
        for entries in (operator, ("*",) if public_only else None):
            if entries is not None:
                policies.append(Policy(tuple(_rules(entries))))
                sources.append("operator")
        return cls(Conjunction(tuple(policies)), sources, is_own=is_own, clock=clock)

    def resolve(self, name: str) -> Verdict:
        """Whether a name may be looked up."""
        question = Resolve(name)
        return self._verdict(decide(self._policy, question), question, name, None, name)

    def connect(self, host: str, port: int, address: str | None = None, *, counted: bool = True) -> Verdict:
        """Whether a connection may be made to a port of a name or a literal address.

        `address` is what a name was resolved to; a private, local, reserved address, or one of this machine, needs a
        rule that names it. With `counted` False rates say nothing and are not used up: for asking ahead of resolving,
        and for a further request on a connection that was counted.
        """
        target = parse_address(address if address is not None else host)
        special = target is not None and is_special(target)
        own = target is not None and not special and self._is_own(str(target))
        question = Connect(host, port, address, self._clock(), own)
        decision = self._decide(question, counted)
        missing = host
        # Where the name itself has no rule, the rule that is missing is the name's.
        if not decision.allowed and (own or special) and self._names_host(host, port):
            missing = str(target)
        return self._verdict(decision, question, host, port, missing)

    def stands(self, host: str, port: int, address: str | None = None) -> bool:
        """Whether a connection that was made may go on; rates, which limit new ones, say nothing."""
        return self.connect(host, port, address, counted=False).allowed

    def unix(self, path: str, *, counted: bool = True) -> Verdict:
        """Whether a UNIX socket may be used; a name in the abstract space begins with `@`."""
        question = Unix(path, self._clock())
        decision = self._decide(question, counted)
        if decision.allowed or decision.rule is not None:
            return self._told(decision, None, "")
        missing = f"net: unix:{path}" if path.isprintable() else None
        return self._told(decision, missing, self._advice(question, f"unix:{path}") if missing else "")

    def continued_from(self, former: EgressRules) -> EgressRules:
        """These rules with the counts of the former ones, so that a change does not refill a rate."""
        self._counters = former._counters
        return self

    def __bool__(self) -> bool:
        """Whether anything may be allowed."""
        return all(policy.index.hosts.names or policy.index.hosts.others or policy.index.sockets for policy in self)

    def __iter__(self) -> Iterator[Policy]:
        """The policies that must all allow something."""
        return iter(self._policy.policies)

    def _decide(self, question: Connect | Unix, counted: bool) -> Decision:
        decision = decide(self._policy, question, self._counters if counted else None)
        if counted and decision.allowed and decision.counters is not None:
            self._counters = decision.counters
        return decision

    def _names_host(self, host: str, port: int) -> bool:
        """Whether a name, whatever it leads to, may be connected to; an address is its own name."""
        return parse_address(host) is not None or decide(self._policy, Connect(host, port)).allowed

    def _verdict(
        self, decision: Decision, question: Resolve | Connect, host: str, port: int | None, missing: str
    ) -> Verdict:
        if decision.allowed or decision.rule is not None:
            return self._told(decision, None, "")
        if normal_name(host) is None and parse_address(host) is None:
            return self._told(decision, None, "ask for a host name in ASCII (xn--) or an address in its usual form")
        if port is not None and not 1 <= port <= 65535:
            return self._told(decision, None, "")
        value = _host_text(missing) if port is None else f"{_host_text(missing)}:{port}"
        return self._told(decision, f"net: {value}", self._advice(question, value))

    def _told(self, decision: Decision, missing: str | None, hint: str) -> Verdict:
        rule = decision.rule
        if not decision.allowed and rule is not None:
            hint = f"`{rule.text}` wins over every grant" if rule.deny else "wait until the rate has room again"
        return Verdict(decision.allowed, None if rule is None else rule.text, missing, decision.reason, hint)

    def _advice(self, question: Resolve | Connect | Unix, value: str) -> str:
        """Where a rule that is missing would have to be added: in each of the policies that do not allow it."""
        without = [
            source for source, policy in zip(self._sources, self, strict=True) if not decide(policy, question).allowed
        ]
        if "operator" in without:
            return f"the operator's policy does not allow it: ask the operator for `net: {value}`"
        if without == [ALLOWLIST]:
            is_host = not isinstance(question, Unix)
            return f"add {value!r} to {ALLOWLIST}" if is_host else f"{ALLOWLIST} is given, which allows no UNIX socket"
        also = f", and to {ALLOWLIST}" if ALLOWLIST in without else ""
        return f"add `net: {value}` to the policy{also}"

    def _loopback_ports(self) -> Iterator[int]:
        for rule in self._grants():
            target = rule.target
            if not isinstance(target, HostTarget) or target.port is None:
                continue
            host = target.name or str(target.address)
            if host not in (*_LOOPBACK, _LOCAL_NAME):
                continue
            addresses = _LOOPBACK if host == _LOCAL_NAME else (None,)
            for address in addresses:
                if decide(self._policy, Connect(host, target.port, address)).allowed:
                    yield target.port

    def _unix_paths(self) -> Iterator[str]:
        for rule in self._grants():
            path = rule.target.path if isinstance(rule.target, UnixTarget) else None
            if path is not None and not path.pattern and decide(self._policy, Unix(path.path)).allowed:
                yield path.path

    def _grants(self) -> Iterator[Rule]:
        return (rule for policy in self for rule in policy.rules if rule.verb == "net" and not rule.deny)


def _host_text(host: str) -> str:
    """A host as a rule names it."""
    address = parse_address(host)
    if address is not None:
        return f"[{address}]" if address.version == 6 else str(address)
    return normal_name(host) or host


def _entries(allowlist: Iterable[str]) -> Iterator[Rule]:
    yield from _rules(parse_allowlist(tuple(allowlist)))


def _rules(entries: Iterable[str]) -> Iterator[Rule]:
    for number, entry in enumerate(entries, 1):
        yield read_rule(Value(entry, Place(ALLOWLIST, number), entry), _NOWHERE, False)
