"""The request bodies of /v1/completions and /v1/chat/completions, validated to the last field.

Knows the wire format and no model: what depends on one (vocabulary, context, template) is checked where the model is
known. Invariants: a field is honoured, or it is refused by name; none is ignored silently. Fields that clients send as
a matter of course pass when they ask for nothing (``echo: false``, ``logprobs: null``). No value is converted: ``"8"``,
``1.5`` and ``true`` are no integers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from engine.messages import SamplingParams
from server.errors import ApiError, bad_request

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1000
MAX_STOP_TOKEN_IDS = 256
MAX_PROMPTS = 1024
MAX_CHOICES = 128
MAX_BEST_OF = 20  # or n, where that is larger
MAX_SALT_CHARACTERS = 256
MAX_PRIORITY = 100
MAX_TIMEOUT_SECONDS = 86_400
MAX_INT32 = 2**31 - 1
DEFAULT_COMPLETION_TOKENS = 16
PROMPT_FORMS = "must be a string, a list of strings, a list of token ids, or a list of lists of token ids"

Prompt = str | list[int]
NeutralValues = dict[str, tuple[object, ...]]

# Fields of the OpenAI API, and of servers like this one, that Octavo does not serve, with the values that ask for
# nothing. null always asks for nothing.
NEUTRAL_SAMPLING: NeutralValues = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "use_beam_search": (False,),
    "prompt_logprobs": (),
    "echo": (False,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
}
NEUTRAL_COMPLETION: NeutralValues = NEUTRAL_SAMPLING | {
    "logprobs": (),
    "suffix": ("",),
}
NEUTRAL_CHAT: NeutralValues = NEUTRAL_SAMPLING | {
    "best_of": (),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "metadata": ({},),
    "web_search_options": (),
}
NEUTRAL_MESSAGE: NeutralValues = {
    "refusal": (),
    "tool_calls": ([],),
    "function_call": (),
    "audio": (),
    "annotations": ([],),
    "reasoning_content": ("",),
}


def _asks_nothing(value: object, neutral: tuple[object, ...]) -> bool:
    if value is None:
        return True
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral)


def _drop_neutral(fields: dict[str, Any], neutral: NeutralValues) -> dict[str, Any]:
    """The fields without those of ``neutral`` that ask for nothing."""
    return {k: v for k, v in fields.items() if not (k in neutral and _asks_nothing(v, neutral[k]))}


def _read_stop(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > MAX_STOP_STRINGS:
        raise ValueError(f"at most {MAX_STOP_STRINGS} stop strings, not {len(stops)}")
    for stop in stops:
        if not isinstance(stop, str):
            raise ValueError("must be a string or a list of strings")
        if not stop:
            raise ValueError("a stop string must not be empty")
        if len(stop) > MAX_STOP_CHARACTERS:
            raise ValueError(f"a stop string has at most {MAX_STOP_CHARACTERS} characters, not {len(stop)}")
    return tuple(stops)


def _read_ids(value: list[Any]) -> list[int]:
    if any(type(token_id) is not int for token_id in value):
        raise ValueError(f"{PROMPT_FORMS}; not a mixture")
    if min(value) < 0:
        raise ValueError(f"token ids are not negative, but {min(value)} is")
    return value


def _read_prompts(value: object) -> tuple[Prompt, ...]:
    """One prompt per choice, from any of the four forms the API allows."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise ValueError(PROMPT_FORMS)
    if not value or any(isinstance(item, (str, list)) and not item for item in value):
        raise ValueError("must not be empty")
    if all(isinstance(item, str) for item in value):
        prompts: tuple[Prompt, ...] = tuple(value)
    elif all(isinstance(item, list) for item in value):
        prompts = tuple(_read_ids(item) for item in value)
    else:
        prompts = (_read_ids(value),)
    if len(prompts) > MAX_PROMPTS:
        raise ValueError(f"at most {MAX_PROMPTS} prompts in one request, not {len(prompts)}")
    return prompts


def _read_content(value: object) -> str:
    """Text of a message: a string, or the joined text of its parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of text parts")
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(kind, str):
            raise ValueError('a content part is an object like {"type": "text", "text": "..."}')
        if kind != "text":
            raise ValueError(f"unsupported content part type {kind[:40]!r}: this server reads text only")
        if part.keys() != {"type", "text"} or not isinstance(part["text"], str):
            raise ValueError('a text part has the fields "type" and "text" and no other, and its text is a string')
        texts.append(part["text"])
    return "".join(texts)


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class StreamOptions(_Body):
    """Options of a streamed answer. Only ``include_usage`` changes it: usage comes in a chunk of its own at the end."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationBody(_Body):
    """What completions and chat have in common: the model, how tokens are drawn, when to stop, and how to answer."""

    model: str = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_INT32)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=MAX_INT32)
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    stop: Annotated[tuple[str, ...], PlainValidator(_read_stop)] = ()
    stop_token_ids: list[Annotated[int, Field(ge=0, le=MAX_INT32)]] | None = Field(None, max_length=MAX_STOP_TOKEN_IDS)
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    cache_salt: str | None = Field(default=None, min_length=1, max_length=MAX_SALT_CHARACTERS)
    priority: int | None = Field(default=None, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    timeout: float | None = Field(default=None, gt=0, le=MAX_TIMEOUT_SECONDS)
    context_overflow: Literal["error", "rotate"] | None = None
    include_ledger: bool | None = None
    user: str | None = None

    @field_validator("stream_options")
    @classmethod
    def _stream_options_need_stream(cls, options: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if options is not None and not info.data.get("stream", True):
            raise ValueError("allowed only with stream: true")
        return options

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def num_choices(self) -> int:
        """Choices per prompt."""
        return self.n or 1

    @property
    def num_samples(self) -> int:
        """Sequences per prompt, of which the best are its choices."""
        return self.num_choices

    @property
    def rotates(self) -> bool:
        return self.context_overflow == "rotate"

    def sampling(self, max_tokens: int) -> SamplingParams:
        """The engine's parameters, for a sequence of at most ``max_tokens`` new tokens."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(self.top_k or 0, 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            seed=self.seed,
            stop_token_ids=self.stop_token_ids or [],
            ignore_eos=self.ignore_eos is True,
            rank=self.num_samples > self.num_choices,
        )


class CompletionBody(GenerationBody):
    """POST /v1/completions: ``n`` choices per prompt, in the order of the prompts."""

    prompt: Annotated[tuple[Prompt, ...], PlainValidator(_read_prompts)]
    best_of: int | None = Field(default=None, ge=1)

    @field_validator("best_of")
    @classmethod
    def _best_of_suits_n_and_stream(cls, best_of: int | None, info: ValidationInfo) -> int | None:
        n = info.data.get("n") or 1
        if best_of is None or "n" not in info.data:
            return best_of
        if best_of < n:
            raise ValueError(f"must be at least n, which is {n}, not {best_of}")
        if best_of > max(n, MAX_BEST_OF):
            raise ValueError(f"must be at most {max(n, MAX_BEST_OF)}, not {best_of}")
        if best_of > n and info.data.get("stream"):
            raise ValueError(f"the best of {best_of} are known only at the end: a stream needs best_of = n = {n}")
        return best_of

    @property
    def num_samples(self) -> int:
        return self.best_of or self.num_choices

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return _drop_neutral(fields, NEUTRAL_COMPLETION)


class ChatMessage(_Body):
    """One message; ``content`` is its text."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, PlainValidator(_read_content)]
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral_fields(cls, fields: Any) -> Any:
        return _drop_neutral(fields, NEUTRAL_MESSAGE) if isinstance(fields, dict) else fields

    def template_fields(self) -> dict[str, str]:
        """The message as a chat template reads it."""
        fields = {"role": self.role, "content": self.content}
        return fields if self.name is None else fields | {"name": self.name}


class ChatBody(GenerationBody):
    """POST /v1/chat/completions: ``n`` choices."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_INT32)
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return _drop_neutral(fields, NEUTRAL_CHAT)

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


BodyT = TypeVar("BodyT", bound=BaseModel)


def parse_body(kind: type[BodyT], raw: bytes, context: int | None = None) -> BodyT:
    """The request body as ``kind``; ApiError 400 for malformed JSON, what is no object, and the first wrong field.

    More token ids in a prompt, or more messages, than the ``context`` has tokens are refused before they are looked at.
    """
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise bad_request("the body must be a JSON object")
    if context is not None:
        _check_counts(fields, context)
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _from_validation(error) from None


def _check_counts(fields: dict[str, Any], context: int) -> None:
    """ApiError 400 for what is too long by its number of items alone."""
    prompt, messages = fields.get("prompt"), fields.get("messages")
    prompts = prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], list) else [prompt]
    for ids in prompts:
        if isinstance(ids, list) and len(ids) > context and not isinstance(ids[0], str):
            message = f"prompt: {len(ids)} token ids are more than the context of {context} tokens"
            raise bad_request(message, code="context_length_exceeded")
    if isinstance(messages, list) and len(messages) > context:
        message = f"messages: {len(messages)} messages are more than the context of {context} tokens can hold"
        raise bad_request(message, code="context_length_exceeded")


def _from_validation(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_input=False)[0]
    param = _path(first["loc"])
    if first["type"] == "extra_forbidden":
        name = str(first["loc"][-1])
        known = name in NEUTRAL_COMPLETION or name in NEUTRAL_CHAT or name in NEUTRAL_MESSAGE
        what = "unsupported" if known else "unknown"
        return bad_request(f"{what} parameter: {param}", param, f"{what}_parameter")
    cause = first.get("ctx", {}).get("error")
    if first["type"] == "model_type":
        message = "must be an object"
    else:
        message = str(cause) if cause is not None else first["msg"][:1].lower() + first["msg"][1:]
    if first["type"] == "missing":
        return bad_request(f"missing parameter: {param}", param, "missing_parameter")
    return bad_request(f"{param}: {message}" if param else message, param)


def _path(location: tuple[int | str, ...]) -> str | None:
    """``messages[0].content`` for ("messages", 0, "content"), cut to a length fit for a message."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path[:100] or None
