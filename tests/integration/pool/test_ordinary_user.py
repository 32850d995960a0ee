# SPDX-License-Identifier: MIT
"""An ordinary user who was given control groups has warm boxes as root has."""

from __future__ import annotations

from collections.abc import Callable

from tests.running_server import RunningServer
from tests.standing import Standing


def test_user_with_control_groups_has_a_warm_pool(
    start_server: Callable[..., RunningServer], standings: Callable[[str], Standing]
) -> None:
    server = start_server(standing=standings("user_with_cgroups"))
    with server.client() as client:
        answer = client.post("/v1/run", json={"code": "print(1)"}).json()
    assert answer["stdout"] == "1\n"
    assert answer["timings"]["start"] in {"warm", "forked"}, server.lines
    assert not any("no warm pool" in line for line in server.lines)
