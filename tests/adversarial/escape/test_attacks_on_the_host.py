# SPDX-License-Identifier: MIT
"""Every attack of guest/, made from inside a jail; what it says it reached, and what the host's canaries say."""

from __future__ import annotations

import os
import shutil
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adversarial.conftest import Jail
from tests.adversarial.guests import attacks_of, execute, output_of, perform
from tests.running_server import RunningServer
from tests.standing import NAMES

GUEST = Path(__file__).with_name("guest")
FIELDS = ("files", "processes", "kernel", "network")
ATTACKS = [(field, attack) for field in FIELDS for attack in attacks_of(GUEST / f"{field}.py")]

Verdicts = dict[str, str | None]


@pytest.fixture(scope="session")
def verdicts(jails: Callable[[str], Jail]) -> Callable[[str, str], tuple[Verdicts, list[str]]]:
    """What the attacks of one field gave for one standing, and which canaries they touched; each field runs once."""
    known: dict[tuple[str, str], tuple[Verdicts, list[str]]] = {}

    def give(standing: str, field: str) -> tuple[Verdicts, list[str]]:
        if (standing, field) not in known:
            jail = jails(standing)
            verdicts = perform(jail.server, GUEST / f"{field}.py", jail.known)
            known[standing, field] = verdicts, jail.canaries.touched()
        return known[standing, field]

    return give


@pytest.mark.parametrize("standing", NAMES)
@pytest.mark.parametrize(("field", "attack"), ATTACKS, ids=[attack for _, attack in ATTACKS])
def test_a_guest_cannot(
    field: str, attack: str, standing: str, verdicts: Callable[[str, str], tuple[Verdicts, list[str]]]
) -> None:
    found, touched = verdicts(standing, field)
    assert attack in found, f"the attack did not run: {found}"
    assert found[attack] is None, found[attack]
    assert not touched, f"an attack on {field} reached the host"


def test_an_interpreter_in_a_private_directory_is_shown_alone_and_read_only(
    start_server: Callable[..., RunningServer], jails: Callable[[str], Jail]
) -> None:
    """Below a directory that only root enters, as an interpreter of pyenv below /root is."""
    jail = jails("root")
    private = Path(tempfile.mkdtemp(prefix="interpreter-", dir=Path.home()))
    try:
        (private / "beside").write_text(jail.canaries.secret)
        venv.create(private / "venv", with_pip=False)
        python = private / "venv" / "bin" / "python"
        server = start_server(arguments=("--backend", "jail"), AGENTBOX_PYTHON=str(python))
        where = output_of(server, "import sys\nprint(sys.executable, sys.prefix)")
        assert where.split() == [str(python), str(private / "venv")]
        found = perform(server, GUEST / "files.py", jail.known)
        assert {attack: answer for attack, answer in found.items() if answer is not None} == {}
        assert not jail.canaries.touched()
        assert server.stop() == 0
        assert sorted(os.listdir(private)) == ["beside", "venv"]
    finally:
        shutil.rmtree(private)


def test_a_guest_that_kills_everything_it_can_kills_only_itself(jail: Jail) -> None:
    code = "import os\nif os.fork() == 0:\n    os.kill(-1, 9)\nos.wait()\nprint('alive')"
    result = execute(jail.server, code)
    assert (result["outcome"], result["exit_code"], result["signal"]) == ("exited", 137, 9)
    assert not result["oom_killed"]
    assert not jail.canaries.touched()
    assert execute(jail.server, "print(1)")["stdout"] == "1\n"


@pytest.mark.parametrize("shell", ["kill -9 1; kill -TERM 1; kill -STOP 1; echo on", "kill -9 $$"])
def test_a_shell_that_kills_its_init_or_itself_leaves_the_next_run_alone(shell: str, jail: Jail) -> None:
    result = execute(jail.server, shell, "bash")
    assert result["outcome"] == "exited"
    assert result["stdout"] == ("on\n" if "echo" in shell else "")
    assert execute(jail.server, "echo next", "bash")["stdout"] == "next\n"
