"""GET /v1/models."""

from __future__ import annotations


async def test_a28_the_list_has_the_served_model_with_the_apis_fields_and_no_other(api, state) -> None:
    response = await api.http.get("/v1/models")
    model = {"id": api.model, "object": "model", "created": state.created, "owned_by": "octavo"}
    assert response.json() == {"object": "list", "data": [model]}


async def test_a27_a_model_whose_id_has_a_slash_can_be_retrieved(api, state) -> None:
    for path in ("/v1/models/org/tiny", "/v1/models/org%2Ftiny"):
        response = await api.http.get(path)
        assert response.status_code == 200
        assert response.json() == {"id": "org/tiny", "object": "model", "created": state.created, "owned_by": "octavo"}


async def test_a27_an_unknown_model_is_a_404_error_object(api) -> None:
    api.assert_error(await api.http.get("/v1/models/other"), 404, param="model", code="model_not_found")
