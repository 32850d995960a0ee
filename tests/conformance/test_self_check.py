# SPDX-License-Identifier: MIT
"""The self-check that ships with the product, as `agentbox doctor` runs it, for every backend and standing here."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.running_server import clean_environment
from tests.standing import NAMES, Standing

Reports = dict[str, Any]

# What must be refused in a jail, whoever started it; cpu is checked where a control group holds it.
JAIL_CHECKS = {
    "host_files_are_invisible", "system_directories_are_read_only", "kernel_settings_are_closed",
    "other_processes_are_invisible", "no_privilege_is_left", "no_foreign_descriptors", "kernel_doors_are_shut",
    "host_services_are_unreachable", "no_way_out", "own_loopback_works", "disk_is_bounded", "processes_are_bounded",
    "memory_is_bounded", "nothing_survives",
}  # fmt: skip


@pytest.fixture(scope="session")
def reports(standings: Callable[[str], Standing]) -> Callable[[str], Reports]:
    """What `agentbox doctor --json` says for a standing; asked once each."""
    known: dict[str, Reports] = {}

    def give(name: str) -> Reports:
        if name not in known:
            standing = standings(name)
            done = subprocess.run(
                [*standing.command, "-m", "agentbox.cli.main", "doctor", "--json"],
                env=clean_environment(standing.environment),
                cwd="/",
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, done.stderr + done.stdout
            known[name] = json.loads(done.stdout)
        return known[name]

    return give


@pytest.mark.parametrize("standing", NAMES)
@pytest.mark.parametrize("backend", ["jail", "subprocess"])
def test_backend_passes_every_check_of_what_it_claims(
    backend: str, standing: str, reports: Callable[[str], Reports]
) -> None:
    report = reports(standing)["backends"][backend]
    assert report["available"]
    assert [check for check in report["checks"] if not check["passed"]] == []
    names = {check["name"] for check in report["checks"]}
    assert names >= (JAIL_CHECKS if backend == "jail" else {"memory_is_bounded", "nothing_survives"})


@pytest.mark.parametrize("standing", NAMES)
def test_jail_is_what_doctor_recommends_and_holds_files_network_processes_and_disk(
    standing: str, reports: Callable[[str], Reports]
) -> None:
    report = reports(standing)
    assert (report["default_backend"], report["usable"]) == ("jail", True)
    held = report["backends"]["jail"]["enforcement"]
    assert {held[name] for name in ("filesystem", "network", "pids", "disk")} == {"kernel"}
    assert held["exec"] == "none"


def test_an_ordinary_user_without_control_groups_is_told_who_holds_memory(reports: Callable[[str], Reports]) -> None:
    held = reports("user")["backends"]["jail"]["enforcement"]
    assert held["memory"] in ("kernel", "supervisor")
    assert (held["memory"] == "kernel") == (held["cpu"] == "kernel")


def test_delegated_control_groups_hold_memory_and_cpu_for_an_ordinary_user(reports: Callable[[str], Reports]) -> None:
    held = reports("user_with_cgroups")["backends"]["jail"]["enforcement"]
    assert (held["memory"], held["cpu"]) == ("kernel", "kernel")


@pytest.mark.parametrize("standing", NAMES)
def test_subprocess_claims_no_wall(standing: str, reports: Callable[[str], Reports]) -> None:
    held = reports(standing)["backends"]["subprocess"]["enforcement"]
    assert {held[name] for name in ("filesystem", "network", "exec", "disk")} == {"none"}


def test_gvisor_passes_every_check_of_the_jail_where_root_starts_it(reports: Callable[[str], Reports]) -> None:
    report = reports("root")
    found = report["backends"]["gvisor"]
    assert all(need["met"] for need in found["requirements"]), found["requirements"]
    assert [check for check in found["checks"] if not check["passed"]] == []
    assert {check["name"] for check in found["checks"]} >= JAIL_CHECKS
    assert {layer for name, layer in found["enforcement"].items() if name != "exec"} == {"kernel"}
    assert report["gateways"]["gvisor"]["available"], report["gateways"]["gvisor"]


def test_an_ordinary_user_is_told_what_gvisor_lacks_and_how_to_get_it(reports: Callable[[str], Reports]) -> None:
    found = reports("user")["backends"]["gvisor"]
    assert not found["available"]
    lacking = [need for need in found["requirements"] if not need["met"]]
    assert "root" in {need["name"] for need in lacking}
    assert all(need["fix"] for need in lacking)
