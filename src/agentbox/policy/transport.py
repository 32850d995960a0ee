# SPDX-License-Identifier: MIT
"""A policy on its way to another process: its text and what the world answered when it was read.

Inside a box paths may resolve otherwise and programs may be hidden, so a guard does not read the policy anew: it reads
the same text with the host's answers. The form is JSON and the same for every guard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentbox.errors import PolicyError
from agentbox.policy.document import AnyPolicy, Conjunction, Policy, canonical_text, policies_of
from agentbox.policy.parser import parse
from agentbox.policy.rule import Place

FORMAT = "agentbox-policy/1"


def pack(policy: AnyPolicy) -> dict[str, Any]:
    """A policy as a JSON object."""
    return {"format": FORMAT, "policies": [_packed(single) for single in policies_of(policy)]}


def unpack(document: Mapping[str, Any]) -> AnyPolicy:
    """The policy of `pack`. Raises PolicyError when the object is none."""
    try:
        if document["format"] != FORMAT:
            raise PolicyError(f"a policy of the form {document['format']!r}", hint="use one version of agentbox")
        policies = tuple(_unpacked(single) for single in document["policies"])
    except (KeyError, TypeError, IndexError) as error:
        raise PolicyError(f"this is no packed policy: {error!r}", hint="it comes from `pack`") from error
    return policies[0] if len(policies) == 1 else Conjunction(policies)


def _packed(policy: Policy) -> dict[str, Any]:
    places = (rule.place for rule in policy.rules)
    return {
        "text": canonical_text(policy),
        "root": policy.root,
        "home": policy.home,
        "sources": list(policy.sources),
        "places": [[place.path, place.line, place.column] for place in places],
        "resolved": dict(policy.recorded.resolved),
        "programs": dict(policy.recorded.programs),
        "libexec": {program: list(found) for program, found in policy.recorded.libexec.items()},
    }


def _unpacked(document: Mapping[str, Any]) -> Policy:
    libexec: Mapping[str, list[str]] = document["libexec"]
    read = parse(
        document["text"],
        root=document["root"],
        home=document["home"],
        resolve=document["resolved"].__getitem__,
        find_program=document["programs"].__getitem__,
        libexec_of=lambda program: tuple(libexec[program]),
    )
    rules = tuple(
        replace(rule, place=Place(*place))
        for rule, place in zip(read.rules, document["places"])  # noqa: B905
    )
    return replace(read, rules=rules, sources=tuple(document["sources"]))
