# SPDX-License-Identifier: MIT
"""The pure parts of backend docker: what is asked of the engine, and how its answers are read."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from agentbox.errors import BackendUnavailableError, InvalidRequestError
from agentbox.isolation.backends.docker.box import program_bytes
from agentbox.isolation.backends.docker.building import parts_of
from agentbox.isolation.backends.docker.daemon import Daemon
from agentbox.isolation.backends.docker.engine import Engine
from agentbox.isolation.backends.docker.images import is_dynamic
from agentbox.isolation.backends.docker.showing import Showing
from agentbox.isolation.backends.docker.spec import ROOT_CAPABILITIES, Container, request_of
from agentbox.isolation.backends.docker.streams import STDERR, STDOUT, Frames
from agentbox.isolation.backends.docker.users import with_line
from agentbox.isolation.facilities import DockerOptions
from agentbox.isolation.plan import WORKSPACE, WorkspaceView

PLAIN = Container("image", ("/init",), "7:7", "/work", {"agentbox.owner": "1-2-3"}, "runc")


def test_container_has_no_privileges_no_network_and_a_read_only_image() -> None:
    body = request_of(PLAIN)
    host = body["HostConfig"]
    assert (host["CapDrop"], host["CapAdd"], host["Privileged"]) == (["ALL"], [], False)
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert (host["NetworkMode"], host["ReadonlyRootfs"]) == ("none", True)
    assert body["User"] == "7:7"
    assert "/proc/kcore" in host["MaskedPaths"]
    assert body["Labels"] == {"agentbox.owner": "1-2-3"}
    assert "PidsLimit" not in host


def test_root_of_a_box_gets_five_capabilities() -> None:
    assert set(ROOT_CAPABILITIES) == {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}


def test_limits_are_the_engine_s_where_no_group_of_ours_holds_them() -> None:
    limited = Container(
        "image", ("/init",), "7:7", "/", {}, "runsc", memory_bytes=1 << 26, pids=9, cpus=0.5, processes=5
    )
    host = request_of(limited)["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (1 << 26, 1 << 26, 9)
    assert (host["CpuQuota"], host["CpuPeriod"]) == (50_000, 100_000)
    assert {"Name": "nproc", "Soft": 5, "Hard": 5} in host["Ulimits"]


def test_container_in_another_one_s_network_has_that_one_s_name() -> None:
    body = request_of(Container("image", ("/init",), "7:7", "/", {}, "runc", network="holder"))
    assert body["HostConfig"]["NetworkMode"] == "container:holder"
    assert "Hostname" not in body


@pytest.mark.parametrize("size", [1, 3, 7, 8, 9, 1000])
def test_frames_are_read_however_they_are_cut(size: int) -> None:
    sent = b"".join(
        bytes([stream, 0, 0, 0]) + struct.pack(">I", len(text)) + text
        for stream, text in ((STDOUT, b"out" * 5), (STDERR, b"err"), (STDOUT, b""), (STDOUT, b"more"))
    )
    frames, got = Frames(), {STDOUT: b"", STDERR: b""}
    for at in range(0, len(sent), size):
        for stream, part in frames.feed(sent[at : at + size]):
            got[stream] += part
    assert got == {STDOUT: b"out" * 5 + b"more", STDERR: b"err"}


def test_program_is_told_to_the_init_with_its_size_before_it() -> None:
    told = program_bytes(["sh", "-c", "é"], {"A": "1"}, "/work")
    (size,) = struct.unpack_from("<I", told)
    assert told[4:] == b"/work\x003\x00sh\x00-c\x00\xc3\xa9\x00A=1\x00"
    assert size == len(told) - 4


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("agentbox/base", ("agentbox/base", "latest")),
        ("a:1", ("a", "1")),
        ("localhost/x/y:v2", ("localhost/x/y", "v2")),
    ],
)
def test_image_s_name_has_a_tag(name: str, parts: tuple[str, str]) -> None:
    assert parts_of(name) == parts


@pytest.mark.parametrize("name", ["", "A", "a b", "/a", "a:", "-x", "a: b"])
def test_what_cannot_name_an_image_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot name an image"):
        parts_of(name)


def test_user_of_a_box_takes_the_place_of_one_with_its_name_or_number() -> None:
    passwd = b"root:x:0:0::/root:/bin/sh\nagent:x:5:5::/:/bin/sh\nother:x:77:77::/:/bin/sh\n"
    assert with_line(passwd, b"agent:x:77:77:agent:/root:/bin/sh", 77) == (
        b"root:x:0:0::/root:/bin/sh\nagent:x:77:77:agent:/root:/bin/sh\n"
    )


def test_program_of_this_host_is_dynamic_and_ours_is_not() -> None:
    from agentbox.isolation.backends.docker.ground import NATIVE_INIT

    assert is_dynamic(Path("/bin/sh").read_bytes()[: 1 << 16])
    assert not is_dynamic(Path(NATIVE_INIT).read_bytes()[: 1 << 16])
    assert not is_dynamic(b"#!/bin/sh\n")


def test_runtime_with_another_network_is_found_for_boxes_with_a_way_out() -> None:
    daemon = Daemon(DockerOptions(runtime="runsc"))
    runsc = {"path": "/usr/bin/runsc", "runtimeArgs": ["--network=none"]}
    daemon._info = {"Runtimes": {"runc": {"path": "runc"}, "runsc": runsc}}
    with pytest.raises(BackendUnavailableError, match="network of its own") as refused:
        daemon.attached_runtime()
    assert "--network=host" in refused.value.hint
    daemon._info["Runtimes"]["second"] = {"path": "/usr/bin/runsc", "runtimeArgs": ["--network=host"]}
    assert daemon.attached_runtime() == "second"
    assert daemon.limits_hold
    runsc["runtimeArgs"] = ["--ignore-cgroups"]
    assert not daemon.limits_hold


def test_engine_that_is_not_of_this_machine_is_refused() -> None:
    with pytest.raises(BackendUnavailableError, match="tcp://elsewhere:2375"):
        Engine("tcp://elsewhere:2375").ask("GET", "/info")


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    (work / "data" / "deep").mkdir(parents=True)
    (work / "main.py").write_text("")
    (work / "data" / "secret").write_text("")
    (work / "link").symlink_to("/etc")
    return tmp_path


def shown(ground: Path, view: WorkspaceView) -> dict[str, tuple[str, bool]]:
    fd = os.open(ground, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = Showing(fd, "D").binds(view)
    finally:
        os.close(fd)
    return {target: (source, writable) for source, target, writable in found}


def test_workspace_that_is_not_shown_whole_is_bare_but_for_its_mounts(ground: Path) -> None:
    found = shown(
        ground, WorkspaceView((("/work/data", False), ("/work/data/deep", True), (f"{WORKSPACE}/main.py", False)))
    )
    assert found == {
        "/work": ("D/bare", False),
        "/work/data": ("D/work/data", False),
        "/work/data/deep": ("D/work/data/deep", True),
        f"{WORKSPACE}/main.py": (f"D{WORKSPACE}/main.py", False),
    }
    assert (ground / "bare" / "data").is_dir()
    assert (ground / "bare" / "main.py").is_file()


def test_nothing_behind_a_link_is_mounted(ground: Path) -> None:
    found = shown(ground, WorkspaceView((("/work/link", False), ("/work/link/passwd", True), ("/work/gone", True))))
    assert found == {"/work": ("D/bare", False)}


def test_what_is_denied_is_covered(ground: Path) -> None:
    view = WorkspaceView((("/work", True),), read_only=("/work/data",), hidden=("/work/data/secret", "/work/data/deep"))
    assert shown(ground, view) == {
        "/work": ("D/work", True),
        "/work/data": ("D/work/data", False),
        "/work/data/secret": ("D/no-file", False),
        "/work/data/deep": ("D/no-directory", False),
    }
