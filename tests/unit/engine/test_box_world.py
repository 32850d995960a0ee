# SPDX-License-Identifier: MIT
from __future__ import annotations

from pathlib import Path

import pytest

from agentbox.engine import box_world
from agentbox.engine.box_world import BoxWorld
from agentbox.errors import PolicyError
from agentbox.workspace.listing import Listing

LISTING = Listing(
    links={"link": "real", "up": "../../etc", "abs": "/work/a", "a/back": "../real", "loop": "loop", "twice": "link"},
    below={
        "": ("a", "abs", "link", "loop", "real", "twice", "up"),
        "a": ("back", "deep", "x.py"),
        "a/deep": ("y.py",),
        "real": (),
    },
)
WORLD = BoxWorld(("/usr/bin",), ("/opt/python",), LISTING)


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("/work/a/x.py", "/work/a/x.py"),
        ("/work/./a//x.py", "/work/a/x.py"),
        ("/work/link", "/work/real"),
        ("/work/link/inner", "/work/real/inner"),
        ("/work/twice", "/work/real"),
        ("/work/a/back", "/work/real"),
        ("/work/abs/x.py", "/work/a/x.py"),
        ("/work/up/passwd", "/etc/passwd"),
        ("/work/loop", "/work/loop"),
        ("/etc/passwd", "/etc/passwd"),
    ],
)
def test_links_of_the_workspace_are_followed_and_no_others(path: str, resolved: str) -> None:
    assert WORLD.resolve(path) == resolved


def test_patterns_of_a_policy_look_at_a_bounded_number_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_world, "MAX_LOOKS", 30)
    world = BoxWorld((), (), LISTING)
    world.below("/work", lambda _: False, None)
    world.below("/work", lambda _: False, None)
    with pytest.raises(PolicyError, match="more than 30 names"):
        world.below("/work", lambda _: False, None)


def test_links_of_the_host_are_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    assert WORLD.resolve(f"{tmp_path}/link") == f"{tmp_path}/link"


def test_programs_are_those_that_a_box_shows(tmp_path: Path) -> None:
    hidden = tmp_path / "tool"
    hidden.write_text("#!/bin/sh\n", encoding="utf-8")
    hidden.chmod(0o755)
    assert WORLD.find_program("ls") == "/usr/bin/ls"
    assert WORLD.find_program("/work/link") == "/work/real"
    assert WORLD.find_program(str(hidden)) is None
    assert WORLD.find_program(f"/usr/../{hidden}") is None


def test_a_link_of_the_workspace_may_mean_a_program_that_every_box_shows() -> None:
    listing = Listing(links={"tool": "/bin/ls", "own": "tool", "secret": "/etc/passwd"}, below={"": ("tool",)})
    world = BoxWorld(("/usr/bin",), (), listing)
    assert world.find_program("/work/tool") == "/usr/bin/ls"
    assert world.find_program("/work/own") == "/usr/bin/ls"
    assert world.find_program("/work/secret") is None


def test_what_is_in_the_workspace_exists() -> None:
    assert WORLD.exists("/work")
    assert WORLD.exists("/work/a/deep/y.py")
    assert WORLD.exists("/work/link")
    assert not WORLD.exists("/work/a/none")


def test_paths_below_a_directory_are_the_topmost_that_are_wanted() -> None:
    def wanted(path: str) -> bool:
        return path.endswith(".py") or path == "/work/a/deep"

    assert WORLD.below("/work", wanted, None) == ("/work/a/deep", "/work/a/x.py")
    assert WORLD.below("/", wanted, None) == ("/work/a/deep", "/work/a/x.py")
    assert WORLD.below("/work", wanted, 1) == ()
    assert WORLD.below("/", wanted, 3) == ("/work/a/deep", "/work/a/x.py")
    assert WORLD.below("/etc", wanted, None) is None
