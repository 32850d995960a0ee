# SPDX-License-Identifier: MIT
"""Asynchronous tests of this room run on each kind of event loop that the gateway runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The kinds: the command line's and the server's."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
