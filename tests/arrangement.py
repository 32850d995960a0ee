# SPDX-License-Identifier: MIT
"""How test processes share a host: which files come first, and what each process has of its own."""

from __future__ import annotations

import os
import signal
import sys

import pytest

# Files that take the longest, the longest first: with several workers none of them is begun when the rest is done.
LONGEST_FIRST = (
    "tests/integration/test_http_schema.py",
    "tests/integration/docker/test_compose.py",
    "tests/adversarial/egress/test_floods.py",
    "tests/adversarial/survivors/test_nothing_outlives_its_run.py",
    "tests/adversarial/resource/test_limits_hold.py",
    "tests/acceptance/test_suites_of_packages.py",
    "tests/adversarial/egress/test_old_ways.py",
    "tests/adversarial/egress/test_requests_that_hide_others.py",
    "tests/adversarial/egress/test_wall_from_inside.py",
    "tests/integration/egress/test_real_clients.py",
    "tests/integration/test_cli_run.py",
    "tests/adversarial/run",
    "tests/adversarial/egress",
    "tests/acceptance",
    "tests/adversarial",
    "tests/conformance",
    "tests/integration",
)


def longest_first(items: list[pytest.Item]) -> None:
    """Put tests of the longest files first; else their order stays."""

    def place(item: pytest.Item) -> int:
        path = item.nodeid.partition("::")[0]
        fitting = (
            place for place, prefix in enumerate(LONGEST_FIRST) if path == prefix or path.startswith(f"{prefix}/")
        )
        return next(fitting, len(LONGEST_FIRST))

    items.sort(key=place)


def stand_apart() -> None:
    """Give a worker, one of several test processes, mounts of its own, so that what tests mount comes and goes for that
    worker alone, and what a run left mounted would be seen by the test that looks for it.

    Only root can; does nothing in a process that is alone.
    """
    if os.environ.get("PYTEST_XDIST_WORKER") and os.geteuid() == 0 and sys.platform == "linux":
        from agentbox.linux import mounts, namespaces

        namespaces.unshare(namespaces.CLONE_NEWNS)
        mounts.make_private()


def be_interruptible() -> None:
    """Let SIGINT be Python's again: a shell's background processes ignore it, and so would every program of a test."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
