# SPDX-License-Identifier: MIT
"""Addresses that stand for names: each for one, none for long after it was given up."""

from __future__ import annotations

import ipaddress
from socket import AF_INET, AF_INET6

import pytest

from agentbox.egress import names as names_module
from agentbox.egress.names import GATEWAY_IPV4, GATEWAY_IPV6, SyntheticNames, is_synthetic
from agentbox.policy.hosts import is_special


def test_address_leads_back_to_its_name_in_both_families() -> None:
    names = SyntheticNames()
    for name in ("a.test", "b.test"):
        for family in (AF_INET, AF_INET6):
            assert names.name_of(names.address_of(name, family)) == name
    assert names.address_of("a.test", AF_INET) == names.address_of("a.test", AF_INET)
    assert names.address_of("a.test", AF_INET) != names.address_of("b.test", AF_INET)


def test_address_is_known_in_any_spelling_of_it() -> None:
    names = SyntheticNames()
    four = names.address_of("a.test", AF_INET)
    six = ipaddress.ip_address(names.address_of("a.test", AF_INET6)).exploded
    assert names.name_of(f"::ffff:{four}") == "a.test"
    assert names.name_of(six.upper()) == "a.test"


@pytest.mark.parametrize(
    "address", ["198.18.200.1", "127.0.0.1", "198.20.0.1", "::1", "fd61:6762:6f78::1", "no address", "", GATEWAY_IPV4]
)
def test_other_address_stands_for_no_name(address: str) -> None:
    names = SyntheticNames()
    names.address_of("a.test", AF_INET)
    assert names.name_of(address) is None


def test_addresses_of_the_gateway_are_never_given_out() -> None:
    names = SyntheticNames()
    given = {names.address_of(f"{number}.test", family) for number in range(300) for family in (AF_INET, AF_INET6)}
    assert not given & {GATEWAY_IPV4, GATEWAY_IPV6}
    assert not is_synthetic(GATEWAY_IPV4)
    assert not is_synthetic(GATEWAY_IPV6)


def test_no_rule_for_every_host_reaches_an_address_that_stands_for_a_name() -> None:
    names = SyntheticNames()
    assert all(is_special(ipaddress.ip_address(names.address_of("a.test", family))) for family in (AF_INET, AF_INET6))


def test_table_is_bounded_and_keeps_what_is_used() -> None:
    names = SyntheticNames(limit=3)
    used = names.address_of("used.test", AF_INET)
    for number in range(50):
        names.address_of(f"{number}.test", AF_INET)
        assert names.name_of(used) == "used.test"
    assert len(names) == 3


def test_address_of_a_name_that_was_given_up_leads_nowhere() -> None:
    names = SyntheticNames(limit=2)
    old = names.address_of("old.test", AF_INET)
    later = [names.address_of(f"{number}.test", AF_INET) for number in range(1000)]
    assert names.name_of(old) is None
    assert old not in later
    assert is_synthetic(old)


def test_all_addresses_are_used_before_one_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "IPV4_NETWORK", ipaddress.IPv4Network("198.18.0.0/23"))
    names = SyntheticNames(limit=1000)
    kept = names.address_of("kept.test", AF_INET)
    seen = []
    for number in range(600):
        seen.append(names.address_of(f"{number}.test", AF_INET))
        assert names.name_of(kept) == "kept.test"
    assert len(names) == 128
    assert len(set(seen)) == 255
    assert seen[:255] == seen[255:510]
