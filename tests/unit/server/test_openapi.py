# SPDX-License-Identifier: MIT
from __future__ import annotations

import json
import re
from typing import Any

from agentbox.config import Settings
from agentbox.server.openapi import document
from agentbox.server.page import reference_page
from agentbox.server.schemas import RunBody
from tests.unit.server.memory_runner import live_server


def operations(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method} {path}", operation)
        for path, item in found["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
    ]


def test_every_reference_leads_to_a_schema() -> None:
    found = document(Settings(), "jail", keyed=True)
    names = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(found)))
    assert names == set(found["components"]["schemas"])


def test_every_route_is_documented() -> None:
    with live_server() as server:
        del server
    documented = {name for name, _ in operations(document(Settings(), "jail", keyed=False))}
    assert {name for name in documented if "/v1/sandboxes" not in name} == {
        "get /health",
        "post /v1/run",
        "get /v1/snapshots",
        "get /v1/snapshots/{snapshot_id}",
        "delete /v1/snapshots/{snapshot_id}",
        "get /v1/runs/{run_id}/trace",
        "post /v1/runs/{run_id}/replay",
        "get /v1/key",
    }


def test_every_field_of_a_run_is_in_the_schema_and_described() -> None:
    schema = document(Settings(), "jail", keyed=False)["components"]["schemas"]["RunBody"]
    assert set(schema["properties"]) == set(RunBody.model_fields)
    assert schema["additionalProperties"] is False


def test_key_is_documented_only_where_it_is_needed() -> None:
    assert "security" not in document(Settings(), "jail", keyed=False)
    keyed = document(Settings(), "jail", keyed=True)
    assert keyed["paths"]["/health"]["get"]["security"] == []
    assert all("401" in op["responses"] for name, op in operations(keyed) if name != "get /health")


def test_backends_of_the_schema_are_those_that_the_operator_allows() -> None:
    found = document(Settings(allowed_backends=("subprocess",)), "jail", keyed=False)
    backend = found["components"]["schemas"]["RunBody"]["properties"]["backend"]
    assert backend["anyOf"][0]["enum"] == ["jail", "subprocess"]


def test_stream_is_a_documented_media_type() -> None:
    run = document(Settings(), "jail", keyed=False)["paths"]["/v1/run"]["post"]
    assert set(run["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}


def test_page_shows_every_operation_and_loads_nothing() -> None:
    found = document(Settings(), "jail", keyed=False)
    page = reference_page(found)
    assert all(name.split(" ")[1] in page for name, _ in operations(found))
    assert "<script" not in page
    assert "://" not in page.replace("http://", "").replace("https://", "") or "src=" not in page


def test_names_of_files_and_variables_that_do_not_match_are_no_part_of_the_schema() -> None:
    run = document(Settings(), "jail", keyed=False)["components"]["schemas"]["RunBody"]["properties"]
    for name in ("files", "env"):
        mapping = run[name]["anyOf"][0]
        assert "patternProperties" not in mapping
        assert mapping["propertyNames"]["pattern"]
