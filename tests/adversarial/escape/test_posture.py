# SPDX-License-Identifier: MIT
"""The walls around a real guest process and its init, as the host's kernel reports them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.adversarial.conftest import Jail
from tests.adversarial.escape.posture import NAMESPACES, Posture, init_of
from tests.adversarial.guests import running
from tests.standing import NAMES

_CODE = "import time\nprint('ready', flush=True)\ntime.sleep(60)"
_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


@dataclass(frozen=True)
class Watched:
    """A guest's main process and the init of its box; both are gone when a test sees them."""

    jail: Jail
    guest: Posture
    init: Posture
    uid_map: str


@pytest.fixture(scope="module", params=NAMES)
def watched(request: pytest.FixtureRequest, jails: Callable[[str], Jail]) -> Iterator[Watched]:
    jail = jails(request.param)
    mark = f"posture-{secrets.token_hex(6)}"
    with running(jail.server, _CODE, args=[mark]):
        guest = Posture.of(mark)
        with open(f"/proc/{guest.pid}/uid_map") as file:
            uid_map = file.read()
        yield Watched(jail, guest, init_of(guest), uid_map)


def test_no_process_of_a_box_has_a_capability(watched: Watched) -> None:
    for posture in (watched.guest, watched.init):
        assert {name: int(posture.status[name], 16) for name in _CAPABILITIES} == dict.fromkeys(_CAPABILITIES, 0)


def test_no_process_of_a_box_has_the_host_uid_0_or_a_group_of_the_host(watched: Watched) -> None:
    for posture in (watched.guest, watched.init):
        assert "0" not in posture.status["Uid"].split()
        assert "0" not in posture.status["Gid"].split()
        assert posture.status["Groups"].split() == []
    assert watched.uid_map.split()[0] == "1000"
    assert watched.uid_map.split()[1] == watched.guest.status["Uid"].split()[0]
    assert watched.uid_map.split()[2] == "1"


def test_a_filter_and_no_new_privileges_are_on_every_process_of_a_box(watched: Watched) -> None:
    for posture in (watched.guest, watched.init):
        assert (posture.status["NoNewPrivs"], posture.status["Seccomp"]) == ("1", "2")
        assert int(posture.status.get("Seccomp_filters", "1")) >= 1


def test_a_box_shares_no_namespace_with_the_host(watched: Watched) -> None:
    for name in NAMESPACES:
        assert watched.guest.namespaces[name] != os.readlink(f"/proc/self/ns/{name}"), name
        # A pooled box has its init before it has a control group.
        assert name == "cgroup" or watched.guest.namespaces[name] == watched.init.namespaces[name]


def test_a_guest_has_three_descriptors(watched: Watched) -> None:
    descriptors = dict(watched.guest.descriptors)
    # Into this one a warm interpreter writes its exit code.
    assert descriptors.pop("1000", "pipe:").startswith("pipe:")
    assert sorted(descriptors) == ["0", "1", "2"]
    assert watched.guest.descriptors["0"] == "/dev/null"
    assert watched.guest.descriptors["1"].startswith("pipe:")
    assert watched.guest.descriptors["2"].startswith("pipe:")


def test_the_init_holds_nothing_that_leads_to_the_host(watched: Watched) -> None:
    kinds = {target.partition(":")[0] for target in watched.init.descriptors.values()}
    assert kinds <= {"socket", "pipe", "/dev/null", "anon_inode"} | {watched.init.descriptors.get("2", "socket")}


def test_no_environment_of_a_box_holds_a_secret_of_the_server(watched: Watched) -> None:
    for posture in (watched.guest, watched.init):
        assert not [name for name, value in posture.environment.items() if watched.jail.canaries.secret in value]
    assert {"MY_APP_CREDS", "GITHUB_TOKEN"}.isdisjoint(watched.guest.environment)


def test_no_mount_of_a_box_is_writable_but_its_own_directories(watched: Watched) -> None:
    writable = set()
    for line in watched.guest.mountinfo.splitlines():
        fields = line.split(" ")
        if "ro" not in fields[5].split(","):
            writable.add(fields[4])
    devices = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")}
    own = {"/work", "/tmp", "/dev/shm", "/dev/pts", "/proc"}
    assert {point for point in writable - own - devices if not point.startswith("/proc/")} == set()


def test_a_box_is_in_a_control_group_of_its_own_where_there_are_any(watched: Watched) -> None:
    held = watched.jail.server.client().post("/v1/run", json={"code": "1"}).json()["enforcement"]["memory"]
    groups = Path(f"/proc/{watched.guest.pid}/cgroup").read_text()
    assert ("/agentbox/" in groups) == (held == "kernel")
    if watched.jail.standing.name != "user":
        assert held == "kernel"


def test_landlock_confines_a_guest_where_the_kernel_has_it(jail: Jail) -> None:
    """Landlock is not in /proc. A rename across directories that a lone first ruleset forbids tells of it: /dev/shm
    and /tmp are one file system, so without Landlock only the mount boundary answers, with EXDEV."""
    from agentbox.linux import landlock
    from tests.adversarial.guests import output_of

    code = (
        "import os\n"
        "fd = os.open('/etc/passwd', os.O_PATH)\n"
        "try:\n    open('/proc/self/comm', 'w').write('x')\n    print('written')\n"
        "except OSError as error:\n    print(error.errno)\n"
    )
    assert output_of(jail.server, code) == ("13\n" if landlock.abi_version() else "written\n")
