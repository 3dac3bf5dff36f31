"""CompletionBody: the body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PlainValidator, ValidationInfo, field_validator

from server.openai.body import NeutralValues
from server.openai.generation_body import MAX_INT32, MAX_LOGPROBS, NEUTRAL_SAMPLING, GenerationBody
from server.openai.prompt_forms import Prompt, PromptForms, read_prompts

MAX_BEST_OF = 20  # or n, where that is larger
DEFAULT_COMPLETION_TOKENS = 16


class CompletionBody(GenerationBody):
    """POST /v1/completions: ``n`` choices per prompt, in the order of the prompts."""

    NEUTRAL: ClassVar[NeutralValues] = NEUTRAL_SAMPLING

    prompt: Annotated[tuple[Prompt, ...], PlainValidator(read_prompts, PromptForms)]
    suffix: str | None = None
    max_tokens: int | None = Field(default=None, ge=0, le=MAX_INT32)
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
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

    @field_validator("prompt_logprobs")
    @classmethod
    def _prompt_logprobs_need_a_plain_answer(cls, num_top: int | None, info: ValidationInfo) -> int | None:
        if num_top is not None and info.data.get("stream"):
            raise ValueError("not allowed with stream: true")
        return num_top

    @property
    def echoes(self) -> bool:
        return self.echo is True

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        echoed = self.logprobs if self.echoes else None
        return max((num for num in (echoed, self.prompt_logprobs) if num is not None), default=None)

    @property
    def may_draw_nothing(self) -> bool:
        """Whether the prompt alone is an answer."""
        return self.echoes or self.prompt_logprobs is not None

    @property
    def num_samples(self) -> int:
        return self.best_of or self.num_choices
