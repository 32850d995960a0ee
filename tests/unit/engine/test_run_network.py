# SPDX-License-Identifier: MIT
"""Where a run may connect to, by what its request says and what the operator set."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentbox.config import Settings
from agentbox.engine.run_network import NO_RULE, NOT_PERMITTED, RunNetwork, decide_network
from agentbox.errors import InvalidRequestError, PolicyError
from agentbox.policy.document import Policy
from agentbox.policy.parser import parse
from agentbox.records import replace


def policy(text: str | None) -> Policy | None:
    return None if text is None else parse(text, root="/work")


def decided(
    requested: Sequence[str] | None = None, asked: str | None = None, ceiling: str | None = None, **settings: object
) -> RunNetwork:
    return decide_network(requested, policy(asked), policy(ceiling), replace(Settings(), **settings))


def reachable(network: RunNetwork, *targets: str) -> list[str]:
    rules = network.rules
    split = (target.rpartition(":") for target in targets)
    return [f"{host}:{port}" for host, _, port in split if rules is not None and rules.connect(host, int(port)).allowed]


HOSTS = ("a.test:443", "a.test:80", "b.test:443", "10.0.0.1:443", "127.0.0.1:8080")


def test_nothing_is_reached_where_the_operator_says_nothing() -> None:
    assert decided() == RunNetwork(None, ())
    assert decided(["a.test"]) == RunNetwork(None, ("a.test",), (NOT_PERMITTED,))
    with pytest.raises(PolicyError, match="net: a"):
        decided(asked="net: a.test")


def test_operator_s_empty_list_denies_every_host() -> None:
    assert decided(egress_allowlist=()).rules is None
    with pytest.raises(InvalidRequestError, match="not permitted"):
        decided(["a.test"], egress_allowlist=())
    assert decided(asked="net: a.test", egress_allowlist=()).rules is None


def test_operator_s_list_holds_for_requests_without_one_and_is_narrowed_by_theirs() -> None:
    assert reachable(decided(egress_allowlist=("a.test", "b.test:443")), *HOSTS) == [*HOSTS[:3]]
    assert reachable(decided(["a.test:443"], egress_allowlist=("a.test", "b.test")), *HOSTS) == ["a.test:443"]
    assert decided([], egress_allowlist=("a.test",)).rules is None


def test_port_of_a_request_never_widens_the_operator_s() -> None:
    assert reachable(decided(["a.test"], egress_allowlist=("a.test:443",)), *HOSTS) == ["a.test:443"]
    assert reachable(decided(["a.test:80"], egress_allowlist=("a.test:443",)), *HOSTS) == []
    network = decided(["localhost:22"], egress_allowlist=("localhost:8080",))
    assert network.rules is not None
    assert network.rules.loopback_ports == frozenset()
    assert any("localhost:22 opens nothing" in warning for warning in network.warnings)


def test_caller_whom_nothing_limits_reaches_public_hosts_alone() -> None:
    network = decided(["a.test", "10.0.0.1", "127.0.0.1:8080"], allow_request_egress=True)
    assert reachable(network, *HOSTS) == ["a.test:443", "a.test:80"]
    assert network.rules is not None
    assert network.rules.loopback_ports == frozenset()
    asked = decided(asked="net: a.test, 10.0.0.1, 127.0.0.1:8080, unix:/run/docker.sock", allow_request_egress=True)
    assert asked.rules is not None
    assert reachable(asked, *HOSTS) == ["a.test:443", "a.test:80"]
    assert (asked.rules.loopback_ports, asked.rules.unix_paths) == (frozenset(), ())
    assert [warning for warning in asked.warnings if "docker.sock" in warning]


def test_policy_and_lists_must_all_allow() -> None:
    both = decided(asked="net: a.test:443, b.test", egress_allowlist=("a.test",))
    assert reachable(both, *HOSTS) == ["a.test:443"]
    assert decided(["a.test"], asked="read: .", egress_allowlist=("a.test",)) == RunNetwork(
        None, ("a.test",), (NO_RULE,)
    )
    under = decided(asked="net: a.test, b.test", ceiling="net: b.test")
    assert reachable(under, *HOSTS) == ["b.test:443"]


def test_ceiling_may_name_what_is_the_server_s_own() -> None:
    ceiling = "net: 127.0.0.1:8080, unix:/run/app.sock"
    network = decided(asked=ceiling, ceiling=ceiling)
    assert network.rules is not None
    assert (network.rules.loopback_ports, network.rules.unix_paths) == ({8080}, ("/run/app.sock",))


@pytest.mark.parametrize("entry", ["localhost", "127.0.0.1"])
def test_loopback_without_a_port_is_a_warning(entry: str) -> None:
    assert any(f"{entry} opens nothing" in warning for warning in decided(egress_allowlist=(entry,)).warnings)
    assert any("opens nothing" in warning for warning in decided(asked=f"net: {entry}", ceiling="net: *").warnings)
