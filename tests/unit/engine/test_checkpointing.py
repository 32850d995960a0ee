# SPDX-License-Identifier: MIT
"""A run's checkpoint is taken once, of the directory that the run began in, by programs that no run could have put
there."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from agentbox.engine.checkpointing import Checkpointing, _program
from agentbox.models import Confinement, FileGrant, Layer, Limits
from agentbox.trace.frames import Request

LIMITS = Limits(timeout_seconds=1, memory_mb=1, cpus=1, pids=1, disk_mb=1, max_output_bytes=1)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "data").mkdir(parents=True)
    (tmp_path / "project" / "data" / "file").write_text("before")
    return tmp_path / "project"


def checkpointing(project: Path, taken: list[tuple[dict[str, Any], dict[str, Any]]]) -> Checkpointing:
    grant = FileGrant(f"{project}/data", True, True, Layer.KERNEL, "write: ./data")
    return Checkpointing(
        str(project),
        "20260101-000000-000001",
        "run",
        Confinement(LIMITS, files=(grant,)),
        made=(),
        own=(),
        environment={"PATH": "/nowhere"},
        on_taken=lambda args, result: taken.append((args, result)),
    )


def frame(op: str, **args: Any) -> Request:
    return Request(1, "observe", op, args, None, "main", True)


def test_of_many_questions_the_first_change_takes_the_one_checkpoint(project: Path) -> None:
    taken: list[tuple[dict[str, Any], dict[str, Any]]] = []

    async def ask() -> list[str]:
        one = checkpointing(project, taken)
        assert await one.before(frame("fs.open_read", path="/x")) == ""
        assert taken == []
        changes = [frame("fs.remove", path="/a"), frame("proc.spawn", argv=["git", "gc"]), frame("fs.mkdir", path="/b")]
        answers = await asyncio.gather(*[one.before(change) for change in changes])
        assert await one.note_changes() == []
        return answers

    assert asyncio.run(ask()) == ["", "", ""]
    ((args, result),) = taken
    assert args == {"tool": "fs.remove", "detail": "/a"}
    assert (result["snapshot"], result["undo"]) == ("20260101-000000-000001", "agentbox undo")


@pytest.mark.parametrize("replaced", ["", "data"], ids=["the project", "what it may write"])
def test_what_was_replaced_since_the_run_began_is_not_saved_in_its_place(project: Path, replaced: str) -> None:
    taken: list[tuple[dict[str, Any], dict[str, Any]]] = []

    async def ask() -> str:
        one = checkpointing(project, taken)
        place = project / replaced if replaced else project
        os.rename(place, place.with_name("moved"))
        (project / "data").mkdir(parents=True)
        return await one.take("openat", "/x")

    assert "replaced" in asyncio.run(ask())
    assert "replaced" in taken[0][1]["error"]
    assert not list(project.glob(".agentbox/checkpoints/*"))


def test_snapback_is_looked_for_on_the_path_and_never_in_the_project(project: Path, tmp_path: Path) -> None:
    for place in (project / "bin", tmp_path / "bin", tmp_path / "linked"):
        place.mkdir()
    for place in (project / "bin", tmp_path / "bin"):
        (place / "snapback").write_text("#!/bin/sh\n")
        (place / "snapback").chmod(0o755)
    (tmp_path / "linked" / "snapback").symlink_to(project / "bin" / "snapback")
    own = f"{project}/bin:bin:.:{tmp_path}/linked"
    assert _program("snapback", {"PATH": own}, str(project)) == ""
    assert _program("snapback", {"PATH": f"{own}:{tmp_path}/bin"}, str(project)) == f"{tmp_path}/bin/snapback"
    (tmp_path / "bin" / "snapback").chmod(0o644)
    assert _program("snapback", {"PATH": f"{tmp_path}/bin"}, str(project)) == ""
