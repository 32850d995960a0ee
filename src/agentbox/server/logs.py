# SPDX-License-Identifier: MIT
"""Log lines on stderr that nothing in a request can forge."""

from __future__ import annotations

import contextlib
import logging
import sys
import time

LOGGERS = ("agentbox", "uvicorn")
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S%z"


class OneLineFormatter(logging.Formatter):
    """Escapes control characters; further lines (a traceback) begin with `  | `, so each record begins one line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s", _TIME_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """The record's text."""
        return "\n  | ".join(_escaped(line) for line in super().format(record).split("\n"))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        """The first line, whatever the message holds."""
        record.message = _escaped(record.message)
        return super().formatMessage(record)


class LineHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes records to stderr as OneLineFormatter shows them, and lines that need no record."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(OneLineFormatter())
        self._second = 0
        self._stamp = ""

    def line(self, name: str, message: str) -> None:
        """Write what a record of the logger `name` at INFO would say."""
        now = int(time.time())
        if now != self._second:
            self._second, self._stamp = now, time.strftime(_TIME_FORMAT, time.localtime(now))
        # A log that cannot be written is no reason to fail a request.
        with self.lock, contextlib.suppress(OSError, ValueError):  # type: ignore[union-attr]
            self.stream.write(f"{self._stamp} INFO {name} {_escaped(message)}\n")
            self.stream.flush()


def info(logger: logging.Logger, message: str) -> None:
    """`logger.info(message)` for the line that each request has: a record, which finds out who calls and in which
    thread and process, would cost as much as reading the request."""
    if not logger.isEnabledFor(logging.INFO):
        return
    handlers = logger.parent.handlers if logger.parent is not None and not logger.handlers else []
    if len(handlers) == 1 and isinstance(handlers[0], LineHandler):
        handlers[0].line(logger.name, message)
    else:
        logger.info("%s", message)


def _escaped(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def configure(level: str) -> None:
    """Send records of agentbox and uvicorn from `level` on to stderr. uvicorn's own talk begins at WARNING."""
    handler = LineHandler()
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(level)
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLevelName(level)))
