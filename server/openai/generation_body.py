"""GenerationBody: what the bodies of all endpoints that generate have in common.

Knows the wire format and no model: what depends on one (vocabulary, context) is checked where the model is known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, ValidationInfo, field_validator

from engine.sampling_params import Grammar, SamplingParams
from server.generation.output_text import TextRules
from server.openai.body import Body, NeutralValues
from server.openai.structured_output import (
    OneGrammar,
    read_choice,
    read_grammar,
    read_json,
    read_regex,
    read_response_format,
    read_structured_outputs,
)

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1000
MAX_STOP_TOKEN_IDS = 256
MAX_CHOICES = 128
MAX_SALT_CHARACTERS = 256
MAX_PRIORITY = 100
MAX_TIMEOUT_SECONDS = 86_400
MAX_LOGPROBS = 20
MAX_BIAS = 100
MAX_BIASED_TOKENS = 1024
MAX_REPETITION_PENALTY = 10
MAX_INT32 = 2**31 - 1
GRAMMAR_FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
TOKEN_ID = re.compile(r"[0-9]{1,10}", re.ASCII)

# Fields of the OpenAI API, and of servers like this one, that Octavo does not serve, with the values that ask for
# nothing. null always asks for nothing.
NEUTRAL_SAMPLING: NeutralValues = {
    "length_penalty": (1,),
    "spaces_between_special_tokens": (True, False),  # none are ever put there
    "use_beam_search": (False,),
    "echo": (False,),
    "prompt_logprobs": (),
}


def _read_logit_bias(value: object) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError('must be an object like {"50256": -100}')
    if len(value) > MAX_BIASED_TOKENS:
        raise ValueError(f"at most {MAX_BIASED_TOKENS} tokens, not {len(value)}")
    biases = {}
    for key, bias in value.items():
        if not (isinstance(key, str) and TOKEN_ID.fullmatch(key)):
            raise ValueError(f"a key is a token id, an integer, as a string, not {str(key)[:40]!r}")
        if isinstance(bias, bool) or not isinstance(bias, (int, float)):
            raise ValueError(f"the bias of token {key} must be a number")
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            raise ValueError(f"the bias of token {key} must be from -{MAX_BIAS} to {MAX_BIAS}, not {bias}")
        biases[int(key)] = float(bias)
    if len(biases) < len(value):
        raise ValueError("a token is named twice")
    return biases


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


LogitBias = Annotated[dict[int, float], PlainValidator(_read_logit_bias, dict[str, float] | None)]


class StreamOptions(Body):
    """Options of a streamed answer. ``include_usage``: usage comes in a chunk of its own at the end.

    ``continuous_usage_stats``: with it, in every other chunk too, as of then. Obfuscation is never put in.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationBody(Body):
    """The model, how tokens are drawn, when to stop, and how to answer."""

    model: str = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_INT32)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=MAX_INT32)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=MAX_REPETITION_PENALTY)
    logit_bias: LogitBias = Field(default_factory=dict)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    stop: Annotated[tuple[str, ...], PlainValidator(_read_stop, str | list[str] | None)] = ()
    stop_token_ids: list[Annotated[int, Field(ge=0, le=MAX_INT32)]] | None = Field(None, max_length=MAX_STOP_TOKEN_IDS)
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(default=None, ge=0, le=MAX_INT32)
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    cache_salt: str | None = Field(default=None, min_length=1, max_length=MAX_SALT_CHARACTERS)
    priority: int | None = Field(default=None, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    timeout: float | None = Field(default=None, gt=0, le=MAX_TIMEOUT_SECONDS)
    context_overflow: Literal["error", "rotate"] | None = None
    include_ledger: bool | None = None
    response_format: Annotated[
        OneGrammar, PlainValidator(read_response_format, json_schema_input_type=dict[str, Any] | None)
    ] = None
    structured_outputs: Annotated[
        OneGrammar, PlainValidator(read_structured_outputs, json_schema_input_type=dict[str, Any] | None)
    ] = None
    guided_json: Annotated[
        OneGrammar, PlainValidator(read_json, json_schema_input_type=dict[str, Any] | bool | str | None)
    ] = None
    guided_regex: Annotated[OneGrammar, PlainValidator(read_regex, json_schema_input_type=str | None)] = None
    guided_choice: Annotated[OneGrammar, PlainValidator(read_choice, json_schema_input_type=list[str] | None)] = None
    guided_grammar: Annotated[OneGrammar, PlainValidator(read_grammar, json_schema_input_type=str | None)] = None
    user: str | None = None

    @field_validator("stream_options")
    @classmethod
    def _stream_options_need_stream(cls, options: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if options is not None and not info.data.get("stream", True):
            raise ValueError("allowed only with stream: true")
        return options

    @field_validator(*GRAMMAR_FIELDS[1:])
    @classmethod
    def _one_grammar(cls, grammar: OneGrammar, info: ValidationInfo) -> OneGrammar:
        others = [name for name in GRAMMAR_FIELDS if info.data.get(name) is not None]
        if grammar is not None and others:
            raise ValueError(f"not together with {others[0]}: an output follows one grammar")
        return grammar

    @property
    def grammar_field(self) -> str | None:
        """The field that says what the output must be, if there is one."""
        return next((name for name in GRAMMAR_FIELDS if getattr(self, name) is not None), None)

    @property
    def grammar(self) -> Grammar | None:
        """What the output must be a word of."""
        name = self.grammar_field
        return None if name is None else getattr(self, name)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def continuous_usage(self) -> bool:
        return (
            self.include_usage
            and self.stream_options is not None
            and self.stream_options.continuous_usage_stats is True
        )

    @property
    def echoes(self) -> bool:
        """Whether each choice begins with the prompt."""
        return False

    @property
    def num_logprobs(self) -> int | None:
        """How many of the most likely tokens are told at each position of the output, beside the one that is there."""
        return None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The same for the prompt, as the engine is asked."""
        return None

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

    def text_rules(self, stops: Sequence[str]) -> TextRules:
        """What becomes text, with ``stops`` of the body and the server."""
        return TextRules(
            stops=stops,
            includes_stop=self.include_stop_str_in_output is True,
            skips_special_tokens=self.skip_special_tokens is not False,
            min_tokens=self.min_tokens or 0,
        )

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
            min_tokens=self.min_tokens or 0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            logit_bias=self.logit_bias,
            logprobs=self.num_logprobs,
            rank=self.num_samples > self.num_choices,
        )
