# SPDX-License-Identifier: MIT
from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbox.policy.hosts import is_special, normal_name, parse_address


@pytest.mark.parametrize(
    "text", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "010.0.0.1", "1.2.3.4.", "[1.2.3.4]"]
)
def test_unusual_spelling_is_neither_address_nor_name(text: str) -> None:
    assert parse_address(text) is None
    assert normal_name(text) is None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::FFFF:0a00:1", "10.0.0.1"),
    ],
)
def test_address_is_known_in_its_usual_forms(text: str, address: str) -> None:
    assert parse_address(text) == ipaddress.ip_address(address)


@pytest.mark.parametrize(
    "address",
    """0.0.0.0 10.9.8.7 127.0.0.1 169.254.169.254 172.31.0.1 192.168.0.1 224.0.0.1 255.255.255.255 100.100.100.100
    :: ::1 fc00::1 fe80::1 ff02::1 64:ff9b::a00:1 2002:a00:1:: 2001:db8::1 ::ffff:0:a00:1""".split(),  # noqa: SIM905 - readable
)
def test_private_local_and_reserved_addresses_are_special(address: str) -> None:
    assert is_special(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "172.32.0.1", "2606:4700::1111"])
def test_public_addresses_are_not_special(address: str) -> None:
    assert not is_special(ipaddress.ip_address(address))


@given(st.ip_addresses())
def test_every_address_is_read_back(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    mapped = getattr(address, "ipv4_mapped", None)
    assert parse_address(str(address)) == (mapped or address)


@pytest.mark.parametrize(
    "text", ["", ".", "a..b", ".a", "a b", "a@b", "*", "a/b", "a:1", "é.com", "a" * 64, "a." * 128]
)
def test_what_is_no_name_has_no_normal_form(text: str) -> None:
    assert normal_name(text) is None


def test_name_is_compared_in_lower_case_and_without_its_dot() -> None:
    assert normal_name("API.Example.COM.") == "api.example.com"
