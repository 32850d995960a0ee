# SPDX-License-Identifier: MIT
"""A jail whose boxes join a network that was made for them holds as well as one without; whoever starts it."""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.test_self_check import JAIL_CHECKS
from tests.running_server import clean_environment
from tests.standing import NAMES, Standing

PROGRAM = Path(__file__).parent / "attached_box.py"
ATTACHED_CHECKS = {"the_gateway_s_sockets_cannot_be_taken", "the_network_cannot_be_changed"}

pytestmark = [pytest.mark.linux, pytest.mark.parametrize("standing", NAMES)]
Told = Callable[[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def told(standings: Callable[[str], Standing]) -> Told:
    """What attached_box.py prints for a standing; run once each."""
    known: dict[tuple[str, str], dict[str, Any]] = {}

    def give(name: str, what: str) -> dict[str, Any]:
        if (name, what) not in known:
            standing = standings(name)
            done = subprocess.run(
                [*standing.command, "-c", PROGRAM.read_text(), what],
                env=clean_environment(standing.environment),
                cwd="/",
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            known[name, what] = json.loads(done.stdout)
        return known[name, what]

    return give


def test_an_attached_box_passes_the_whole_self_check(standing: str, told: Told) -> None:
    report = told(standing, "self-check")
    assert [check for check in report["checks"] if not check["passed"]] == []
    assert {check["name"] for check in report["checks"]} >= JAIL_CHECKS | ATTACHED_CHECKS


def test_a_connection_to_any_address_reaches_the_owner_who_sees_where_it_wanted_to_go(
    standing: str, told: Told
) -> None:
    served = told(standing, "guest")["served"]
    assert served["literal"] == "192.0.2.7 port 443"
    assert served["literal_ipv6"] == "2001:db8::7 port 80"
    assert served["metadata"] == "169.254.169.254 port 80"
    assert served["gateway_itself"] == "198.18.0.1 port 65530"


def test_a_name_is_looked_up_at_the_owner_and_leads_to_the_address_that_it_gave(standing: str, told: Told) -> None:
    served = told(standing, "guest")["served"]
    assert served["name"] == "198.18.1.7 port 8443"
    assert served["resolv_conf"] == "nameserver 198.18.0.1\n"


def test_whichever_name_server_a_program_asks_it_asks_the_owner(standing: str, told: Told) -> None:
    served = told(standing, "guest")["served"]
    for way in ("dns_stream", "dns_elsewhere", "dns_ipv6", "dns_systemd"):
        assert served[way] == "the name server", way


def test_two_programs_of_a_box_talk_over_its_own_loopback_on_any_port(standing: str, told: Told) -> None:
    served = told(standing, "guest")["served"]
    for own in ("own_53", "own_80", "own_9999", "own_everywhere", "own_ipv6", "own_address"):
        assert served[own] == "from another process", own
    assert served["not_listening"] == errno.ECONNREFUSED


def test_datagrams_to_elsewhere_are_refused_and_counted(standing: str, told: Told) -> None:
    found = told(standing, "guest")
    assert (found["served"]["udp"], found["served"]["udp_ipv6"]) == (errno.EPERM, errno.EPERM)
    assert found["dropped"] == 2


def test_a_forwarded_port_and_a_socket_s_path_reach_the_owner(standing: str, told: Told) -> None:
    served = told(standing, "guest")["served"]
    assert (served["forwarded"], served["forwarded_ipv6"]) == ("forwarded", "forwarded")
    assert served["unix"] == "/run/database/.s.5432"


def test_a_socket_of_the_host_in_a_lent_directory_is_covered_by_the_listener_of_the_owner(
    standing: str, told: Told
) -> None:
    found = told(standing, "guest")
    assert found["served"]["unix_of_the_host"] == found["lent"]


def test_a_socket_s_path_below_a_directory_of_the_host_is_refused_with_the_reason(standing: str, told: Told) -> None:
    refused = told(standing, "guest")["refused"]
    assert "listen at /usr/lib/new/socket" in refused
    assert "no socket is there that the listener could cover" in refused


def test_a_box_whose_owner_stopped_serving_is_refused_at_once(standing: str, told: Told) -> None:
    closed = told(standing, "guest")["closed"]
    assert set(closed.values()) == {errno.ECONNREFUSED}
