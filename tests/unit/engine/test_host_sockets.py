# SPDX-License-Identifier: MIT
"""Sockets of the host below the paths that a policy lends."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from agentbox.engine.host_sockets import sockets_below


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = Path(os.path.realpath(tmp_path)) / "p"
    (directory / "data/deep").mkdir(parents=True)
    (directory / "data/linked").symlink_to(directory / "data/deep")
    monkeypatch.chdir(directory)
    return directory


def bound(name: str | bytes) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(name)
    return made


def test_socket_is_found_by_whatever_name_it_was_made(project: Path) -> None:
    sockets = [bound("data/a"), bound(f"{project}/data/deep/b"), bound("data/linked/c"), bound("./data/deep/../d")]
    found = sockets_below([f"{project}/data"], "/")
    assert sorted(found) == [f"{project}/data/{name}" for name in ("a", "d", "deep/b", "deep/c")]
    for made in sockets:
        made.close()


def test_socket_beside_what_is_lent_is_not_found_and_one_that_is_lent_by_name_is(project: Path) -> None:
    (project / "database").mkdir()
    sockets = [bound("s"), bound("database/s"), bound("data/s")]
    assert sockets_below([f"{project}/data"], str(project)) == [f"{project}/data/s"]
    assert sockets_below([f"{project}/s"], str(project)) == [f"{project}/s"]
    for made in sockets:
        made.close()


def test_socket_that_nobody_holds_any_more_is_an_ordinary_file(project: Path) -> None:
    bound("data/left").close()
    assert sockets_below([f"{project}/data"], str(project)) == []


@pytest.mark.parametrize("name", [b"data/new\nline", b"data/\xff", b"data/with blank", b"data/ ends "])
def test_odd_name_hides_no_other_socket(project: Path, name: bytes) -> None:
    sockets = [bound(name), bound("data/plain")]
    assert f"{project}/data/plain" in sockets_below([f"{project}/data"], str(project))
    for made in sockets:
        made.close()
