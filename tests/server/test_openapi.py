"""The server's own OpenAPI document: complete, and safe to send everything that it describes, and its opposite."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode

from server.openai.body import Body
from server.openapi import BODIES

NUM_EXAMPLES = 100  # of each path and mode, the same in every run


async def test_every_route_is_in_it_and_every_body_has_its_schema(api, app: FastAPI) -> None:
    document = (await api.http.get("/openapi.json")).json()
    routes = {route.path.replace(":path", "") for route in app.routes if getattr(route, "include_in_schema", False)}
    assert set(document["paths"]) == routes
    assert set(BODIES) == {path for path, methods in document["paths"].items() if "requestBody" in str(methods)}
    assert document["info"]["version"] == (await api.http.get("/version")).json()["version"]


async def test_what_is_accepted_and_what_is_not_can_be_read_from_it(api) -> None:
    schemas = (await api.http.get("/openapi.json")).json()["components"]["schemas"]
    completion = schemas["CompletionBody"]
    assert completion["additionalProperties"] is False
    assert completion["properties"]["top_p"]["anyOf"][0] == {"exclusiveMinimum": 0, "maximum": 1, "type": "number"}
    assert [one["type"] for one in completion["properties"]["prompt"]["anyOf"]] == ["string", *["array"] * 3]
    assert completion["properties"]["use_beam_search"]["enum"] == [None, False]


def bodies(kind: type[Body] = Body) -> list[type[Body]]:
    return [kind, *(one for child in kind.__subclasses__() for one in bodies(child))]


def test_no_field_of_a_body_is_without_a_type() -> None:
    for kind in bodies():
        if inspect.isabstract(kind) or not kind.model_fields:
            continue
        for name, schema in kind.model_json_schema()["properties"].items():
            assert schema.keys() & {"type", "anyOf", "enum", "const", "$ref", "oneOf"}, f"{kind.__name__}.{name}"


POSTED = sorted(BODIES)


@pytest.mark.slow
@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_body_is_a_failure_of_the_server(app: FastAPI, engine: Any, path: str, mode: GenerationMode) -> None:
    """Half of the examples follow the schema and half break it; both are answered, with no status of 500 and more."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    strategy = schema[path]["POST"].as_strategy(generation_mode=mode)
    statuses = set()

    @settings(
        max_examples=NUM_EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def answered(case: Case) -> None:
        engine.scripts.clear()
        response = case.call()
        statuses.add(response.status_code)
        assert response.status_code < 500, response.text

    answered()
    assert statuses
