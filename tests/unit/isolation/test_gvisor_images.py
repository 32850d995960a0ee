# SPDX-License-Identifier: MIT
"""Images of gVisor boxes: what of one is shown, and what a name and a tar file must be."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from agentbox.errors import ConfigError, ConfinementError
from agentbox.isolation.backends.gvisor import images
from agentbox.isolation.plan import jail_plan
from agentbox.models import Confinement, Limits

LIMITS = Limits(timeout_seconds=30, memory_mb=256, cpus=1.0, pids=64, disk_mb=128, max_output_bytes=1 << 20)


@pytest.fixture
def image(tmp_path: Path) -> images.Image:
    root = tmp_path / "images" / "some_image_1" / "rootfs"
    for name in ("usr/bin", "opt", "proc", "root", "etc/ssl"):
        (root / name).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "etc" / "shadow").write_text("private")
    (root / "etc" / "passwd").write_text("its own")
    (root / "etc" / "version").write_text("1")
    (root / "etc" / "localtime").symlink_to("/etc/shadow")
    return images.find(str(tmp_path / "images"), "some/image:1")


def test_plan_shows_the_image_in_place_of_the_hosts_files_and_follows_no_link(image: images.Image) -> None:
    base = jail_plan(Confinement(LIMITS), images.view(image), host_uid=1, host_gid=1, memory_held_by_cgroup=True)
    plan = images.shown(base, image)
    assert dict(plan.binds) == {f"{image.rootfs}{path}": path for path in ("/opt", "/usr", "/etc/ssl", "/etc/version")}
    links = dict(plan.links)
    assert (links["/bin"], links["/etc/localtime"]) == ("usr/bin", "/etc/shadow")
    assert dict(plan.files)["/etc/passwd"].startswith("agent:")


def test_image_that_is_not_there_is_an_error_that_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ConfinementError) as caught:
        images.find(str(tmp_path), "nothing")
    assert "agentbox image import --gvisor" in caught.value.hint


@pytest.mark.parametrize("name", ["", "../up", "a/../b", "-x", "a b", "a\n", "x" * 200])
def test_name_that_could_lead_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        images.find(str(tmp_path), name)


def test_tar_file_without_a_root_file_system_leaves_the_image_before_it(tmp_path: Path, image: images.Image) -> None:
    (tmp_path / "file").write_text("x")
    for name, tarball in (("empty", tmp_path / "empty.tar"), ("text", tmp_path / "file")):
        if name == "empty":
            with tarfile.open(tarball, "w") as tar:
                tar.add(tmp_path / "file", "file")
        with pytest.raises(ConfigError):
            images.unpack(str(tmp_path / "images"), "some/image:1", str(tarball))
    assert (Path(image.rootfs) / "etc" / "version").read_text() == "1"
    assert os.listdir(Path(image.rootfs).parent) == ["rootfs"]


def test_unpacked_image_takes_the_place_of_the_one_before(tmp_path: Path, image: images.Image) -> None:
    made = tmp_path / "made"
    (made / "usr").mkdir(parents=True)
    (made / "etc").mkdir()
    (made / "etc" / "version").write_text("2")
    tarball = tmp_path / "image.tar"
    with tarfile.open(tarball, "w") as tar:
        tar.add(made, ".")
    found = images.unpack(str(tmp_path / "images"), "some/image:1", str(tarball))
    assert found == image
    assert (Path(image.rootfs) / "etc" / "version").read_text() == "2"
    assert os.listdir(Path(image.rootfs).parent) == ["rootfs"]
