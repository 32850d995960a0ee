# SPDX-License-Identifier: MIT
from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from agentbox.server.problems import Problem
from agentbox.server.routing import JsonAnswer, Router


@pytest.fixture
def router() -> Router:
    async def fixed(request: Request) -> JsonAnswer:
        return JsonAnswer(b'"fixed"')

    async def named(request: Request) -> JsonAnswer:
        return JsonAnswer(request.path_params["name"].encode(), 201)

    made = Router()
    made.add("GET", "/things", fixed)
    made.add("GET", "/things/{name}/part", named)
    made.add("DELETE", "/things/{name}/part", named)
    return made


async def answer(router: Router, method: str, path: str) -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    await router({"type": "http", "method": method, "path": path, "headers": []}, receive, send)
    return [sent[0]["status"], sent[1]["body"]]


async def test_fixed_path_and_named_part_lead_to_their_endpoints(router: Router) -> None:
    assert await answer(router, "GET", "/things") == [200, b'"fixed"']
    assert await answer(router, "DELETE", "/things/a b/part") == [201, b"a b"]


@pytest.mark.parametrize(
    "path", ["/", "", "/things/", "/things//part", "/things/a/b/part", "/things/a/part/", "/Things"]
)
async def test_path_that_is_not_there_is_404(router: Router, path: str) -> None:
    with pytest.raises(Problem) as raised:
        await answer(router, "GET", path)
    assert raised.value.status == 404


@pytest.mark.parametrize(("path", "allowed"), [("/things", "GET"), ("/things/a/part", "DELETE, GET")])
async def test_other_method_is_405_and_names_those_that_there_are(router: Router, path: str, allowed: str) -> None:
    for method in ("HEAD", "POST", "get"):
        with pytest.raises(Problem) as raised:
            await answer(router, method, path)
        assert (raised.value.status, raised.value.headers["Allow"]) == (405, allowed)
