# SPDX-License-Identifier: MIT
"""Policies hold in durable boxes of every backend: files, variables, limits, programs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbox import Sandbox
from agentbox.errors import PolicyError
from agentbox.models import Layer
from tests.conftest import not_here
from tests.integration.sandbox.conftest import MakeSandbox

POLICY = """\
read: .
write: out, src
deny: write src/gen, src/fixed
deny: read .env, later.key
env: CI
limits: memory_mb=300, pids=64
"""
PROGRAMS = "exec: bash, cat, touch, ls, python3\n"


def filled(workspace: Path) -> Path:
    """A workspace with something to protect."""
    (workspace / "src" / "gen").mkdir(parents=True)
    (workspace / "src" / "fixed").write_text("as it was")
    (workspace / "data").mkdir()
    (workspace / "data" / "x.csv").write_text("1,2\n")
    (workspace / ".env").write_text("SECRET")
    return workspace


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, backend: str) -> Path:
    """The workspace of `held`."""
    if os.geteuid() != 0 and backend.startswith("docker"):
        not_here("parts of a workspace are shown to containers by root alone")
    return filled(tmp_path_factory.mktemp(f"workspace-{backend}"))


@pytest.fixture(scope="module")
def held(backend: str, make_sandbox: MakeSandbox, workspace: Path) -> Iterator[Sandbox]:
    """A sandbox of each backend under the policy."""
    policy = POLICY + (PROGRAMS if backend == "jail" else "")
    made = make_sandbox(backend, policy=policy, workspace=str(workspace), env={"CI": "1", "TOKEN": "secret"})
    yield made
    made.stop()
    assert sorted(path.name for path in workspace.iterdir()) == [".env", "data", "out", "src"]


def test_files_are_as_the_policy_says_by_both_names_of_the_workspace(held: Sandbox, workspace: Path) -> None:
    for top in ("/work", "/root"):
        for path in (".env", "later.key"):
            assert held.exec(["cat", f"{top}/{path}"]).exit_code == 1, path
        for path in ("new", "data/new", "src/gen/new", ".env", "later.key"):
            assert held.exec(["touch", f"{top}/{path}"]).exit_code == 1, path
        assert held.exec(["touch", f"{top}/out/made", f"{top}/src/made"]).exit_code == 0
        assert held.exec(["cat", f"{top}/data/x.csv"]).stdout == b"1,2\n"
    assert (workspace / ".env").read_text() == "SECRET"
    assert (workspace / "out" / "made").exists()


def test_the_files_of_the_sandbox_are_under_the_policy_too(held: Sandbox, workspace: Path) -> None:
    with pytest.raises(OSError, match="denied"):
        held.files.read(".env")
    with pytest.raises(OSError, match=r"Read-only|denied"):
        held.files.write("data/new", "x")
    with pytest.raises(OSError, match=r"Read-only|denied"):
        held.files.write("src/fixed", "x")
    assert (workspace / "src" / "fixed").read_text() == "as it was"
    held.files.write("out/written", "x")


def test_variables_that_the_policy_does_not_name_reach_no_command(held: Sandbox) -> None:
    script = "import os; print(sorted(name for name in os.environ if name in ('CI', 'TOKEN', 'OTHER')))"
    done = held.exec(["python3", "-c", script], env={"OTHER": "x"})
    assert done.stdout == b"['CI']\n"
    assert [denial.target for denial in held.denials if denial.effect == "env"] == ["TOKEN", "OTHER"]


def test_limits_are_the_smallest_of_both(held: Sandbox) -> None:
    assert held.asynchronous.limits.memory_mb == 300
    assert held.asynchronous.limits.pids == 64


def test_after_a_reset_the_policy_holds_still(held: Sandbox) -> None:
    held.reset()
    assert held.exec(["cat", ".env"]).exit_code == 1
    assert held.exec(["touch", "data/new"]).exit_code == 1
    assert held.exec(["cat", "data/x.csv"]).exit_code == 0


def test_programs_are_judged_in_the_jail_whoever_starts_them(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    with make_sandbox("jail", policy="exec: bash, cat, python3\nwrite: .\n", trace=str(tmp_path / "t.jsonl")) as judged:
        assert judged.enforcement.exec is Layer.KERNEL
        assert judged.exec("cat /dev/null && echo through").stdout == b"through\n"
        with pytest.raises(PermissionError):
            judged.exec(["/usr/bin/id"])
        assert b"Permission denied" in judged.exec("id").stdout
        script = "import os; os.execv('/usr/bin/id', ['cat'])"
        assert judged.exec(["python3", "-c", script]).exit_code == 1
        copied = "import shutil; shutil.copy('/usr/bin/id', 'cat'); import os; os.execv('./cat', ['cat'])"
        assert judged.exec(["python3", "-c", copied]).exit_code == 1
        assert judged.shell_exec("id").startswith("exit=126")
        denied = [denial for denial in judged.denials if denial.effect == "exec"]
        assert {denial.target for denial in denied} == {"/usr/bin/id", "/work/cat"}
        assert denied[0].rule_missing == "exec: /usr/bin/id"
        assert all(denial.layer is Layer.KERNEL and denial.trace_index > 0 for denial in denied[:1])


def test_rules_about_programs_are_refused_where_nothing_judges_them(backend: str, make_sandbox: MakeSandbox) -> None:
    if backend == "jail":
        with make_sandbox("jail", policy="exec: true\n") as judged:
            assert judged.exec(["true"]).exit_code == 0
        return
    with pytest.raises(PolicyError, match="`exec: git`") as caught:
        make_sandbox(backend, policy="exec: git\n")
    assert "jail" in caught.value.hint


def test_a_link_that_a_guest_made_leads_a_rule_nowhere(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    work = tmp_path / "work"
    work.mkdir()
    (work / "out").symlink_to(outside)
    with make_sandbox("jail", policy="read: .\nwrite: out\n", workspace=str(work)) as sandbox:
        assert sandbox.exec("touch out/planted").exit_code != 0
    assert list(outside.iterdir()) == []
