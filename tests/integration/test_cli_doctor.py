# SPDX-License-Identifier: MIT
"""`agentbox doctor` says what is enforced here, and what is missing."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from agentbox.cli import doctor
from agentbox.engine.gateway_check import GatewayReport
from agentbox.isolation.selfcheck import Check
from agentbox.models import Enforcement, Layer
from tests.integration.commands import Finished, agentbox
from tests.running_server import clean_environment

# Enough for what is said of any backend; all of them are examined once, by `examined`.
BOTH = ("--backend", "jail", "--backend", "subprocess")


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return agentbox("doctor", "--json", cwd=tmp_path_factory.mktemp("empty"))


def test_json_has_every_backend_with_requirements_checks_and_enforcement(examined: Finished) -> None:
    report = json.loads(examined.stdout)
    assert {"jail", "subprocess"} <= report["backends"].keys()
    for name, backend in report["backends"].items():
        assert all(need.keys() == {"name", "met", "detail", "fix"} for need in backend["requirements"])
        if backend["available"]:
            assert backend["checks"], f"{name} is called available although nothing was checked"
            assert backend["enforcement"].keys() == {f.name for f in fields(Enforcement)}
            assert set(backend["enforcement"].values()) <= {str(layer) for layer in Layer}


def test_exit_code_says_whether_the_default_backend_can_be_used(examined: Finished) -> None:
    report = json.loads(examined.stdout)
    assert report["default_backend"] == "jail"
    assert report["usable"] is report["backends"]["jail"]["available"]
    assert examined.exit_code == (0 if report["usable"] else 1)


@pytest.mark.linux
def test_the_way_out_of_the_jail_is_tried_in_attached_boxes(examined: Finished) -> None:
    report = json.loads(examined.stdout)
    if not report["backends"]["jail"]["available"]:
        pytest.skip("needs the jail")
    proven = {
        name for name, found in report["backends"].items() if found.get("enforcement", {}).get("network") != "none"
    }
    assert {"jail"} <= report["gateways"].keys() <= proven, "what does not hold the network has no way out to prove"
    found = report["gateways"]["jail"]
    assert found["available"], found
    passed = {check["name"] for check in found["checks"] if check["passed"]}
    assert passed >= {
        "the_gateway_s_sockets_cannot_be_taken",
        "an_allowed_name_means_the_gateway",
        "another_name_does_not_exist",
        "a_connection_meets_the_gateway",
    }
    assert {check["name"] for check in report["backends"]["jail"]["checks"]} - passed <= {"cpu_is_bounded"}


def test_what_a_host_cannot_give_a_way_out_is_shown() -> None:
    missing = GatewayReport("jail", problem="no network attachment: fit out: EPERM", fix="do this\nthen that")
    assert doctor._gateway_lines(missing) == [
        "way out of jail through the gateway: not available: `net:` rules and allowlists are refused here",
        "  MISSING  network attachment             no network attachment: fit out: EPERM",
        "           fix: do this",
        "           fix: then that",
    ]
    weaker = GatewayReport("jail", (Check("a", "network", True),), ("no IPv6: the host has it switched off",))
    assert doctor._gateway_lines(weaker)[-1].split() == [
        "NOTE",
        "not",
        "on",
        "this",
        "host",
        "no",
        "IPv6:",
        "the",
        "host",
        "has",
        "it",
        "switched",
        "off",
    ]
    assert weaker.usable
    assert not missing.usable


def test_backend_without_a_wall_is_said_to_enforce_nothing_of_files_and_network(examined: Finished) -> None:
    held = json.loads(examined.stdout)["backends"]["subprocess"]["enforcement"]
    assert (held["filesystem"], held["network"]) == ("none", "none")


def test_text_shows_each_backend_its_enforcement_and_a_verdict(tmp_path: Path) -> None:
    done = agentbox("doctor", *BOTH, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert any(line.startswith("jail: ") and line.endswith("(default)") for line in lines)
    assert any(line.startswith("subprocess: ") for line in lines)
    assert any(line.startswith("  enforces filesystem=") for line in lines)
    assert lines[-2].startswith("jail ")
    assert lines[-1] == "subprocess is ready: `agentbox serve --backend subprocess --allow-unisolated` uses it."
    assert "\r" not in done.stdout + done.stderr, "progress is for terminals"


def test_terminal_sees_what_is_being_checked_and_then_only_the_report(tmp_path: Path) -> None:
    terminal, side = pty.openpty()
    with open(terminal, "rb", buffering=0) as shown:
        process = subprocess.Popen(
            [sys.executable, "-m", "agentbox.cli.main", "doctor", *BOTH],
            env=clean_environment({}),
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=side,
        )
        os.close(side)
        report, _ = process.communicate(timeout=300)
        progress = shown.read(1 << 16).decode()
    assert "jail: running its self-check" in progress
    assert progress.endswith("\r\x1b[K"), "the line is removed"
    assert b"running its self-check" not in report


def test_only_backends_that_are_named_are_examined_and_decide_the_exit_code(tmp_path: Path) -> None:
    done = agentbox("doctor", "--json", "--backend", "subprocess", cwd=tmp_path)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["backends"].keys() == {"subprocess"}
    assert agentbox("doctor", *BOTH, cwd=tmp_path, environment={"AGENTBOX_PYTHON": "/nowhere/python"}).exit_code == 2
    unknown = agentbox("doctor", "--backend", "jial", cwd=tmp_path)
    assert unknown.exit_code == 2
    assert "jial is no backend; there are jail, " in unknown.stderr


def test_bad_setting_is_named(tmp_path: Path) -> None:
    done = agentbox("doctor", cwd=tmp_path, environment={"AGENTBOX_SANDBOX_BACKEND": "Bogus"})
    assert done.exit_code == 2
    assert "AGENTBOX_SANDBOX_BACKEND" in done.stderr


def test_report_names_the_interpreters_and_what_control_groups_hold(examined: Finished) -> None:
    report = json.loads(examined.stdout)
    found = {interpreter["language"]: interpreter for interpreter in report["interpreters"]}
    assert found.keys() == {"python", "javascript", "bash"}
    assert found["python"]["version"]
    assert os.access(found["python"]["path"], os.X_OK)
    assert report["control_groups"].startswith("control groups v")


def test_a_missing_interpreter_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    done = agentbox("doctor", *BOTH[2:], cwd=tmp_path, environment={"AGENTBOX_NODE": "/nowhere/node"})
    assert "AGENTBOX_NODE=/nowhere/node: no such program" in done.stdout
    assert "fix: give the absolute path of an interpreter" in done.stdout
