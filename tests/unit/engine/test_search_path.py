# SPDX-License-Identifier: MIT
from __future__ import annotations

from pathlib import Path

import pytest

from agentbox.engine.search_path import search_path, with_plain_path


@pytest.fixture
def pyenv(tmp_path: Path) -> Path:
    root = tmp_path / ".pyenv"
    for version in ("3.11.7", "3.12.1", "3.12.10", "3.12-dev", "own"):
        (root / "versions" / version / "bin").mkdir(parents=True)
    (root / "shims").mkdir()
    return root


def found(pyenv: Path, directory: Path, **environment: str) -> list[str]:
    given = {"PATH": f"/opt/bin:{pyenv}/shims:/usr/bin", **environment}
    return [place.replace(f"{pyenv}/", "") for place in search_path(given, str(directory))]


@pytest.mark.parametrize(
    ("asked", "versions"),
    [
        ("3.11.7", ["3.11.7"]),
        ("3.12", ["3.12.10"]),
        ("own\n3.11.7\n", ["own", "3.11.7"]),
        ("# none\n3.11.7 # this\n", ["3.11.7"]),
        ("system", []),
    ],
)
def test_shims_become_the_programs_of_the_chosen_versions(pyenv: Path, asked: str, versions: list[str]) -> None:
    (pyenv / "version").write_text(asked)
    expected = ["/opt/bin", *(f"versions/{version}/bin" for version in versions), "/usr/bin"]
    assert found(pyenv, pyenv) == expected


def test_a_variable_comes_before_the_nearest_file_and_that_before_the_managers_own(pyenv: Path, tmp_path: Path) -> None:
    inner = tmp_path / "project" / "deep"
    inner.mkdir(parents=True)
    (pyenv / "version").write_text("3.11.7")
    assert found(pyenv, inner)[1] == "versions/3.11.7/bin"
    (tmp_path / "project" / ".python-version").write_text("3.12.1")
    assert found(pyenv, inner)[1] == "versions/3.12.1/bin"
    assert found(pyenv, inner, PYENV_VERSION="own:3.11.7")[1:3] == ["versions/own/bin", "versions/3.11.7/bin"]


@pytest.mark.parametrize("asked", ["2.7", "../../elsewhere", "..", "/usr", "3.11.7/../3.12.1"])
def test_a_version_that_is_not_there_leaves_the_shims_as_they_are(pyenv: Path, asked: str) -> None:
    (pyenv / "version").write_text(asked)
    assert found(pyenv, pyenv) == ["/opt/bin", "shims", "/usr/bin"]


def test_without_a_choice_the_systems_programs_are_meant(pyenv: Path) -> None:
    assert found(pyenv, pyenv) == ["/opt/bin", "/usr/bin"]


def test_another_directory_called_shims_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tool" / "shims").mkdir(parents=True)
    path = f"{tmp_path}/tool/shims:/usr/bin"
    assert with_plain_path({"PATH": path, "A": "1"}, "/") == {"PATH": path, "A": "1"}


def test_a_path_without_shims_stays_as_it_was_written() -> None:
    assert with_plain_path({"PATH": "/usr/bin::."}, "/")["PATH"] == "/usr/bin::."
    assert with_plain_path({}, "/") == {}
