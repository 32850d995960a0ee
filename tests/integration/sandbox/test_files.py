# SPDX-License-Identifier: MIT
"""Files of a sandbox: whole, in pieces, as directories, and never one of the host's."""

from __future__ import annotations

import hashlib
import os
import resource
from pathlib import Path

import pytest

from agentbox import Sandbox


def test_a_file_is_written_with_its_parents_and_read_back(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 5000
    sandbox.files.write("deep/er/file", data)
    assert sandbox.files.read("deep/er/file") == data
    assert sandbox.files.read("/root/deep/er/file", offset=300, length=5) == data[300:305]
    assert sandbox.files.exists("deep/er")
    assert not sandbox.files.exists("deep/none")
    sandbox.files.remove("deep")
    assert not sandbox.files.exists("deep")


def test_text_is_written_and_read_as_it_is(jailed: Sandbox) -> None:
    jailed.files.write("text", "äöü\r\nline\n")
    assert jailed.files.read_text("text") == "äöü\r\nline\n"
    jailed.files.write("text", "more", how="append")
    assert jailed.files.read_text("text").endswith("line\nmore")
    with pytest.raises(FileExistsError):
        jailed.files.write("text", "x", how="new")


def test_faults_are_those_of_local_files(sandbox: Sandbox) -> None:
    sandbox.files.make_directory("a-directory")
    with pytest.raises(FileNotFoundError, match="none"):
        sandbox.files.read("none")
    with pytest.raises(IsADirectoryError):
        sandbox.files.read("a-directory")
    with pytest.raises(OSError, match=r"Read-only|Permission denied"):
        sandbox.files.write("/usr/bin/new", b"x")
    sandbox.exec("echo x > locked; chmod 444 locked")
    with pytest.raises(PermissionError):
        sandbox.files.write("locked", b"x")


def test_modes_are_kept_and_set(jailed: Sandbox) -> None:
    jailed.files.write("program", "#!/bin/sh\necho ran\n", mode=0o755)
    assert jailed.exec(["./program"]).stdout == b"ran\n"
    jailed.files.write("program", "#!/bin/sh\necho again\n")
    assert jailed.exec(["./program"]).stdout == b"again\n"
    assert jailed.files.info("program").mode == 0o755


def test_a_directory_is_listed_with_what_everything_is(sandbox: Sandbox) -> None:
    sandbox.exec("mkdir -p listed/below; echo content > listed/file; ln -s file listed/link; mkfifo listed/fifo")
    found = {one.name: one for one in sandbox.files.list("listed")}
    assert {name: one.kind for name, one in found.items()} == {
        "below": "directory",
        "file": "file",
        "link": "link",
        "fifo": "fifo",
    }
    assert (found["file"].size, found["link"].target) == (8, "file")
    assert len(sandbox.files.list(".", depth=-1)) > 4


def test_a_link_leads_where_it_leads_inside_and_nowhere_on_the_host(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    sandbox.exec(["ln", "-sfn", str(secret), "to-host"])
    sandbox.exec(["ln", "-sfn", "/etc/hostname", "to-own"])
    with pytest.raises(FileNotFoundError):
        sandbox.files.read("to-host")
    assert sandbox.files.read("to-own") == sandbox.exec(["cat", "/etc/hostname"]).stdout
    assert secret.read_text() == "of the host"


def test_directories_are_copied_both_ways_without_links(jailed: Sandbox, tmp_path: Path, place: Path) -> None:
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    (source / "below" / "program").write_text("#!/bin/sh\n")
    (source / "below" / "program").chmod(0o755)
    (source / "link").symlink_to("/etc/passwd")
    (source / "empty").mkdir()
    assert jailed.files.upload(source, "copy") == 10
    jailed.exec(["ln", "-s", "/etc/passwd", "copy/planted"])
    assert jailed.files.info("copy/below/program").mode == 0o755
    assert jailed.files.download("copy", place) == 10
    assert sorted(str(one.relative_to(place)) for one in place.rglob("*")) == ["below", "below/program", "empty"]


def test_the_workspace_is_fetched_from_the_hosts_side_without_its_links(jailed: Sandbox, place: Path) -> None:
    jailed.exec("mkdir -p f/g; echo fetched > f/g/file; ln -s /etc/shadow f/link; mkfifo f/fifo; chmod 0 f/g/file")
    fetched = jailed.fetch_workspace(place)
    assert (place / "f" / "g" / "file").read_text() == "fetched\n"
    assert not os.path.lexists(place / "f" / "link")
    assert [one for one in fetched.left_out if one.startswith("f/link")]
    jailed.exec("rm -rf f")


def test_big_files_pass_in_constant_memory(jailed: Sandbox) -> None:
    piece = os.urandom(1 << 20)
    count = 48
    jailed.files.write("big", (piece for _ in range(8)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    jailed.files.write("big", (piece for _ in range(count)))
    found = hashlib.sha256()
    for part in jailed.files.stream("big"):
        found.update(part)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert found.digest() == hashlib.sha256(piece * count).digest()
    assert grown < 48 << 10
    jailed.files.remove("big")


def test_a_full_disk_is_told_and_leaves_the_old_file(jailed: Sandbox) -> None:
    jailed.files.write("/tmp/old", "old")
    jailed.exec("head -c 1000000000 /dev/zero > /tmp/fill")
    with pytest.raises(OSError, match="No space left"):
        jailed.files.write("/tmp/old", b"x" * 100_000)
    assert jailed.files.read("/tmp/old") == b"old"
    assert jailed.exec("echo well").stdout == b"well\n"
    jailed.exec("rm /tmp/fill")
