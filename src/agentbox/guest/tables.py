# SPDX-License-Identifier: MIT
"""A policy as plain tables: what the guard of an interpreter loads in a fraction of a millisecond.

Reading a policy's text takes an interpreter a hundred milliseconds of imports, at every start of every process. So the
host reads it, and a guard gets the rules as lists of strings and numbers, which it needs no module to understand.
`spec/policy/vectors/decide.json` is passed by both, so both mean the same.
"""

from __future__ import annotations

from agentbox.policy import protected
from agentbox.policy.document import policies_of
from agentbox.policy.hosts import SPECIAL_NETWORKS
from agentbox.policy.rule import ExecTarget, HostTarget, PathTarget, SwitchTarget, UnixTarget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from agentbox.policy.document import AnyPolicy, Policy
    from agentbox.policy.rule import Rate, Rule

if TYPE_CHECKING:
    from socket import AF_INET, AF_INET6, inet_pton

    encode_basestring_ascii: Any
    make_encoder: Any
else:
    try:
        # The compiled parts alone: what surrounds them takes longer to import than a policy to write.
        from _json import encode_basestring_ascii, make_encoder
        from _socket import AF_INET, AF_INET6, inet_pton
    except ImportError:
        from socket import AF_INET, AF_INET6, inet_pton

        make_encoder = None

FORMAT = "agentbox-guard/1"
_DOUBLE_STAR = "**"


def policy_file(policy: AnyPolicy) -> str:
    """The content of the file that `AGENTBOX_POLICY` names."""
    if make_encoder is not None:
        encode = make_encoder(None, None, encode_basestring_ascii, None, ":", ",", False, False, False)
        return "".join(encode(tables(policy), 0))
    import json

    return json.dumps(tables(policy), ensure_ascii=True, separators=(",", ":"))


def tables(policy: AnyPolicy) -> dict[str, Any]:
    """The tables of a policy, of JSON values only."""
    return {
        "format": FORMAT,
        "policy_sha256": policy.policy_sha256,
        "policies": [_policy(single) for single in policies_of(policy)],
        "special": [_written_network(network) for network in SPECIAL_NETWORKS],
        "protected": {
            "names": dict(protected.NAMES),
            "sequences": [[*pair, why] for pair, why in protected.SEQUENCES.items()],
            "last": dict(protected.LAST_PARTS),
            "suffixes": dict(protected.SUFFIXES),
            "submodule": {name: protected.SEQUENCES[".git", name] for name in ("hooks", "config")},
        },
    }


def _policy(policy: Policy) -> dict[str, Any]:
    rules = [(rule, _target(rule)) for rule in policy.rules]
    return {
        "rules": [
            [rule.verb, rule.deny, rule.text, rule.place.line, rule.canonical, target]
            for rule, target in rules
            if target is not None
        ],
        "own": sorted(policy.index.own.exact),
    }


def _target(rule: Rule) -> Optional[list[Any]]:  # noqa: UP045 - Python 3.9
    """A rule's target, None for the rules that no guard is asked about."""
    target = rule.target
    if isinstance(target, PathTarget):
        return _path(target)
    if isinstance(target, HostTarget):
        return [
            "host",
            target.name,
            _tokens(target.pattern),
            target.any_host,
            target.address_pattern,
            None if target.address is None else _address(target.address),
            None if target.network is None else _network(target.network),
            target.port,
            _rate(target.rate),
        ]
    if isinstance(target, UnixTarget):
        path = None if target.path is None else _path(target.path)
        return ["unix", path, _tokens(target.abstract), target.any_socket, _rate(target.rate)]
    if isinstance(target, ExecTarget):
        return ["exec", list(target.words), target.program, list(target.libexec)]
    if isinstance(target, SwitchTarget):
        return ["switch", target.on]
    return None


def _path(target: PathTarget) -> list[Any]:
    pattern = [_DOUBLE_STAR if text == _DOUBLE_STAR else _tokens(part) for part, text in _parts(target)]
    return ["path", target.path, pattern, target.alias, target.max_bytes]


def _parts(target: PathTarget) -> list[tuple[Any, str]]:
    return list(zip(target.pattern, target.pattern_text.split("/"))) if target.pattern else []  # noqa: B905 - Python 3.9


def _tokens(found: Any) -> list[Any]:
    """Tokens of single characters, whatever runs of them the host keeps together."""
    flat: list[Any] = []
    for token in found:
        if isinstance(token, str):
            flat += token
        else:
            flat.append([token[0], [list(pair) for pair in token[1]]] if isinstance(token, tuple) else token)
    return flat


def _rate(rate: Optional[Rate]) -> Optional[list[int]]:  # noqa: UP045 - Python 3.9
    return None if rate is None else [rate.count, rate.seconds]


def _address(address: Any) -> list[Any]:
    return [address.version, address.packed.hex()]


def _network(network: Any) -> list[Any]:
    return [network.version, network.network_address.packed.hex(), network.prefixlen]


def _written_network(text: str) -> list[Any]:
    """As `_network`, of a text that is known to be right: `ipaddress` is too much to import for these."""
    address, _, length = text.partition("/")
    six = ":" in address
    return [6 if six else 4, inet_pton(AF_INET6 if six else AF_INET, address).hex(), int(length)]
