# SPDX-License-Identifier: MIT
"""Namespaces that say whose files are shown as whose."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentbox.linux import namespaces
from tests.conftest import not_here


@pytest.fixture(autouse=True)
def root() -> None:
    if os.geteuid() != 0:
        not_here("only root maps ids of others")


def test_maps_that_threads_make_at_once_do_not_wait_for_each_other() -> None:
    # Each is made by a child, which inherits what other threads have open for theirs.
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda id_: namespaces.mapping_namespace(0, 70000 + id_), range(64), timeout=60))
    assert len({os.fstat(fd).st_ino for fd in made}) == 64
    for fd in made:
        os.close(fd)
