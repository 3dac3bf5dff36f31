"""EmbeddingBody: the body of POST /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PlainValidator

from engine.messages import Pooling
from server.openai.body import Body
from server.openai.generation_body import MAX_INT32, MAX_SALT_CHARACTERS, MAX_TIMEOUT_SECONDS
from server.openai.prompt_forms import Prompt, PromptForms, read_prompts

DEFAULT_POOLING = Pooling.LAST  # as decoders that were trained to embed expect


class EmbeddingBody(Body):
    """POST /v1/embeddings: one vector for each text or list of token ids, in their order."""

    model: str = Field(min_length=1)
    input: Annotated[tuple[Prompt, ...], PlainValidator(read_prompts, PromptForms)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(default=None, ge=1, le=MAX_INT32)
    pooling: Literal["mean", "last"] | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=MAX_SALT_CHARACTERS)
    timeout: float | None = Field(default=None, gt=0, le=MAX_TIMEOUT_SECONDS)
    user: str | None = None

    @property
    def chosen_pooling(self) -> Pooling:
        return DEFAULT_POOLING if self.pooling is None else Pooling(self.pooling)
