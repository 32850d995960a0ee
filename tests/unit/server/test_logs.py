# SPDX-License-Identifier: MIT
from __future__ import annotations

import logging
import sys

import pytest

from agentbox.server import logs
from agentbox.server.logs import OneLineFormatter


def line_of(message: str, *, failed: bool = False) -> str:
    information = None
    if failed:
        try:
            raise ValueError("inside\nFORGED by an exception")
        except ValueError:
            information = sys.exc_info()
    record = logging.LogRecord("agentbox", logging.INFO, "", 0, "%s", (message,), information)
    return OneLineFormatter().format(record)


def test_message_cannot_begin_a_line() -> None:
    assert line_of("a\r\nFORGED line\x1b[31m").count("\n") == 0


def test_control_characters_are_visible() -> None:
    assert "\\x1b[31m" in line_of("\x1b[31m")


def test_traceback_cannot_begin_a_line_that_looks_like_a_record() -> None:
    lines = line_of("failed", failed=True).split("\n")
    assert len(lines) > 3
    assert all(line.startswith("  | ") for line in lines[1:])


@pytest.fixture
def fresh_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in logs.LOGGERS:
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])


@pytest.mark.usefixtures("fresh_loggers")
def test_line_without_a_record_looks_like_one_with(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("INFO")
    logger = logging.getLogger("agentbox.access")
    logger.info("a\nFORGED")
    logs.info(logger, "a\nFORGED")
    first, second = (line.partition(" ")[2] for line in capsys.readouterr().err.splitlines())
    assert first == second == "INFO agentbox.access a\\nFORGED"


@pytest.mark.usefixtures("fresh_loggers")
def test_line_below_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("WARNING")
    logs.info(logging.getLogger("agentbox.access"), "quiet")
    assert capsys.readouterr().err == ""
