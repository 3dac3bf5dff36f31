"""Body: a JSON request body, validated to the last field.

Knows how bodies are read and refused, and no endpoint. Invariants: a field is honoured, or it is refused by name; none
is ignored silently. Fields that clients send as a matter of course pass when they ask for nothing (``suffix: ""``,
``logprobs: null``). No value is converted: ``"8"``, ``1.5`` and ``true`` are no integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from server.errors import ApiError, bad_request, context_exceeded
from server.http.nesting import MAX_DEPTH, is_deeper

NeutralValues = dict[str, tuple[object, ...]]


class WrongField(ValueError):
    """What is wrong inside a field that a validator of ours reads; ``location`` leads there from the field."""

    def __init__(self, message: str, *location: int | str, code: str | None = None) -> None:
        super().__init__(message)
        self.location = location
        self.code = code


class Body(BaseModel):
    """A JSON object. ``NEUTRAL``: fields it does not serve, with the values beside null that ask for nothing."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    NEUTRAL: ClassVar[NeutralValues] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or not cls.NEUTRAL:
            return fields
        return {k: v for k, v in fields.items() if not (k in cls.NEUTRAL and _asks_nothing(v, cls.NEUTRAL[k]))}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The fields of ``NEUTRAL`` are accepted too, with those values."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).setdefault("properties", {})
        for name, values in cls.NEUTRAL.items():
            properties.setdefault(name, {"enum": [None, *values], "description": "accepted where it asks for nothing"})
        return schema


def _asks_nothing(value: object, neutral: tuple[object, ...]) -> bool:
    if value is None:
        return True
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral)


BodyT = TypeVar("BodyT", bound=Body)


def parse_body(kind: type[BodyT], raw: bytes, context: int | None = None) -> BodyT:
    """The request body as ``kind``; ApiError 400 for JSON that is malformed or too deep, what is no object, and the
    first wrong field.

    More token ids in a prompt, or more messages, than the ``context`` has tokens are refused before they are looked at.
    """
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and is_deeper(fields):
        raise bad_request(f"the body is nested deeper than {MAX_DEPTH} levels", code="invalid_json")
    if not isinstance(fields, dict):
        raise bad_request("the body must be a JSON object")
    if context is not None:
        _check_counts(fields, context)
    return validate_body(kind, fields)


def validate_body(kind: type[BodyT], fields: dict[str, Any], at: str = "") -> BodyT:
    """The object as ``kind``; ApiError 400 for the first wrong field. ``at`` is where the object is in the request."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _from_validation(error, at) from None


def _check_counts(fields: dict[str, Any], context: int) -> None:
    """ApiError 400 for what is too long by its number of items alone."""
    for name in ("prompt", "tokens", "input"):
        _check_ids(name, fields.get(name), context)
    messages = fields.get("messages")
    if isinstance(messages, list) and len(messages) > context:
        raise context_exceeded("messages", context, f"{len(messages)} messages are more than it can hold")


def _check_ids(name: str, value: object, context: int) -> None:
    lists = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    for ids in lists:
        if isinstance(ids, list) and len(ids) > context and not isinstance(ids[0], str):
            what = "items" if isinstance(ids[0], dict) else "token ids"
            raise context_exceeded(name, context, f"{len(ids)} {what} are more")


def _from_validation(error: ValidationError, at: str) -> ApiError:
    first = error.errors(include_url=False, include_input=False)[0]
    param = _path((at, *first["loc"]) if at else first["loc"])
    if first["type"] == "extra_forbidden":
        name = str(first["loc"][-1])
        known = any(name in one.NEUTRAL for one in _kinds(Body))
        what = "unsupported" if known else "unknown"
        return bad_request(f"{what} parameter: {param or repr(name)}", param, f"{what}_parameter")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, WrongField):
        param = _path((*first["loc"], *cause.location))
        return bad_request(f"{param}: {cause}", param, cause.code)
    if first["type"] == "model_type":
        message = "must be an object"
    else:
        message = str(cause) if cause is not None else first["msg"][:1].lower() + first["msg"][1:]
    if first["type"] == "missing":
        return bad_request(f"missing parameter: {param}", param, "missing_parameter")
    return bad_request(f"{param}: {message}" if param else message, param)


def _kinds(base: type[Body]) -> Iterator[type[Body]]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds(kind)


def _path(location: tuple[int | str, ...]) -> str | None:
    """``messages[0].content`` for ("messages", 0, "content"), cut to a length fit for a message."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path[:100] or None
