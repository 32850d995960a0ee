# SPDX-License-Identifier: MIT
from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentbox.engine.policy_world import HostFiles, Programs, absolute, load_policy, read_policy
from agentbox.errors import PolicyError, PolicySyntaxError
from agentbox.policy.evaluation import decide
from agentbox.policy.questions import Exec, Read, Write


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_rule_that_names_a_link_is_for_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "out").symlink_to("/etc")
    policy = read_policy("read: ./link\n", root=str(tmp_path))
    root = str(tmp_path)
    assert decide(policy, Read(absolute("link/x", root))).allowed
    assert decide(policy, Read(absolute("real/x", root))).allowed
    assert not decide(policy, Read(absolute("link/out/passwd", root))).allowed
    assert not decide(policy, Read(absolute("other", root))).allowed


def test_root_that_is_a_link_is_the_directory_that_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    root = str(tmp_path / "link")
    policy = read_policy("write: .\n", root=root)
    assert decide(policy, Write(absolute("x", root))).allowed
    assert not decide(policy, Write(absolute(".agentbox/x", root))).allowed


def test_program_is_found_on_absolute_directories_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trusted = program(tmp_path / "bin" / "tool")
    program(tmp_path / "project" / "tool")
    monkeypatch.chdir(tmp_path / "project")
    programs = Programs((".", "", str(trusted.parent)))
    assert programs.find("tool") == str(trusted)
    assert programs.find(str(trusted)) == str(trusted)
    assert programs.find("nothing") is None
    assert programs.find(str(tmp_path)) is None


def test_program_is_the_file_behind_its_links(tmp_path: Path) -> None:
    real = program(tmp_path / "bin" / "tool-2.1")
    (tmp_path / "bin" / "tool").symlink_to("tool-2.1")
    assert Programs((str(real.parent),)).find("tool") == str(real)


def test_parts_of_a_program_are_found_by_custom(tmp_path: Path) -> None:
    git = program(tmp_path / "bin" / "git")
    program(tmp_path / "lib" / "git-core" / "git-remote-https")
    program(tmp_path / "libexec" / "other" / "x")
    assert Programs(()).libexec_of(str(git)) == (str(tmp_path / "lib" / "git-core"),)


def test_this_interpreters_git_or_shell_is_allowed_by_its_name() -> None:
    policy = read_policy("exec: sh -c 'true'\n", root="/")
    found = Programs().find("sh")
    assert decide(policy, Exec(("sh", "-c", "true"), found)).allowed
    assert not decide(policy, Exec(("sh", "-c", "false"), found)).allowed


def test_policy_file_is_read_with_its_includes(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "a.policy").write_text("include: b.policy\nwrite: .\n")
    (tmp_path / "etc" / "b.policy").write_text("read: ./data\n")
    policy = load_policy(str(tmp_path / "etc" / "a.policy"), root=str(tmp_path))
    assert [rule.text for rule in policy.rules] == ["read: ./data", "write: ."]
    assert policy.sources == (str(tmp_path / "etc" / "a.policy"), str(tmp_path / "etc" / "b.policy"))
    assert not decide(policy, Write(str(tmp_path / "etc" / "b.policy"))).allowed


def test_text_without_a_file_includes_nothing(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("read: /\n")
    with pytest.raises(PolicySyntaxError):
        read_policy("include: b\n", root=str(tmp_path))


@pytest.mark.parametrize("name", ["nowhere", "directory", "fifo"])
def test_what_cannot_be_read_as_a_policy_is_an_error_and_never_waits(tmp_path: Path, name: str) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(PolicyError, match="cannot read the policy"):
        load_policy(str(tmp_path / name))


def test_wanted_files_are_found_to_a_depth_without_following_links(tmp_path: Path) -> None:
    for name in ("a.txt", "d/b.txt", "d/e/c.txt", "d.txt/inside.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "link").symlink_to("d")
    (tmp_path / "loop").symlink_to(".")

    def names(depth: int | None) -> list[str]:
        found = HostFiles().below(str(tmp_path), lambda path: path.endswith(".txt"), depth)
        return [os.path.relpath(path, tmp_path) for path in found or ()]

    assert names(None) == ["a.txt", "d.txt", "d/b.txt", "d/e/c.txt"]
    assert names(1) == ["a.txt", "d.txt"]
    assert names(2) == ["a.txt", "d.txt", "d/b.txt"]


def test_a_search_gives_up_where_there_is_too_much(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).write_text("")
    assert HostFiles(max_entries=10).below(str(tmp_path), lambda path: True, None) is None
