# SPDX-License-Identifier: MIT
"""Log lines on stderr that nothing in a request can forge."""

from __future__ import annotations

import logging
import sys

LOGGERS = ("agentbox", "uvicorn")


class OneLineFormatter(logging.Formatter):
    """Escapes control characters; further lines (a traceback) begin with `  | `, so each record begins one line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S%z")

    def format(self, record: logging.LogRecord) -> str:
        """The record's text."""
        return "\n  | ".join(_escaped(line) for line in super().format(record).split("\n"))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        """The first line, whatever the message holds."""
        record.message = _escaped(record.message)
        return super().formatMessage(record)


def _escaped(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def configure(level: str) -> None:
    """Send records of agentbox and uvicorn from `level` on to stderr. uvicorn's own talk begins at WARNING."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLineFormatter())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(level)
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLevelName(level)))
