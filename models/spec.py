"""ModelSpec: everything about a decoder that serving needs to know before a weight is read.

Torch-free, so that sizing, the scheduler's process and `octavo inspect` can use it cheaply. Read from ``config.json``
or GGUF metadata by ``models.registry``. A family is a way to fill this in: what layers compute follows from it alone.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from models.codes.codes_spec import CodesSpec


class NormKind(enum.StrEnum):
    """RMSNorm (Zhang and Sennrich, 2019), LayerNorm with a bias (Ba et al., 2016), or LayerNorm without any weights."""

    RMS = "rms"
    LAYER = "layer"
    BARE_LAYER = "bare layer"


class NormPlace(enum.StrEnum):
    """Where the norms of a branch are: of what it reads, of what it adds, or of both."""

    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"


class QKNorm(enum.StrEnum):
    """Norm of queries and keys before they are rotated.

    RMSNorm over each head by itself, or over all of them together; or LayerNorm without a bias over each head, by
    weights of its own.
    """

    NONE = "none"
    HEAD = "head"
    ALL_HEADS = "all heads"
    LAYER_OF_EACH_HEAD = "layer of each head"


class Parallel(enum.StrEnum):
    """Whether attention and MLP read the same hidden states, and whether through one norm or each through its own."""

    NO = "no"
    TWO_NORMS = "two norms"
    ONE_NORM = "one norm"


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of one layer kind.

    ``theta`` is the base; ``scaling`` names a rule of ``models.rotary``; ``parameters`` holds the rule's numbers under
    the names that Hugging Face configs use (``factor``, ``low_freq_factor`` and so on). ``frequency_factors`` divide
    each of the frequencies, and ``long_factors`` do it instead of them where there are any: those are for servers of
    contexts longer than ``original_max_position_embeddings``, see `for_length`. Cosines and sines are multiplied by
    ``attention_factor``. ``dim`` is how many elements of a head turn, the first ones; None: all.
    """

    theta: float
    scaling: str = "default"
    parameters: dict[str, float] = field(default_factory=dict)
    frequency_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    attention_factor: float = 1.0
    dim: int | None = None

    def for_length(self, max_length: int) -> RopeSpec:
        """The rule for a server of up to ``max_length`` tokens: the same at every position, whoever else is served."""
        if not self.long_factors or max_length > self.parameters["original_max_position_embeddings"]:
            return self
        return replace(self, long_factors=())


@dataclass(frozen=True, slots=True)
class SharpeningSpec:
    """Scores of the query at position ``p`` are ``1 + beta * log(1 + floor(p / length))`` times as large (Llama 4)."""

    beta: float
    length: int


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer: ``window`` is the number of visible positions (None: all); ``rope`` None turns nothing.

    ``is_sparse``: its MLP is a mixture of experts.
    """

    window: int | None
    rope: RopeSpec | None
    is_sparse: bool = False

    def for_length(self, max_length: int) -> LayerSpec:
        """See `ModelSpec.for_length`."""
        return self if self.rope is None else replace(self, rope=self.rope.for_length(max_length))


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """A mixture of experts: each token goes to the ``per_token`` likeliest by the router's softmax, with these weights.

    ``is_normalised``: the weights of those that were chosen are scaled to sum to 1. ``has_bias``: of the router and of
    the experts. ``shared_size``: inner size of one more that every token goes to, if there is one.
    """

    num_experts: int
    per_token: int
    intermediate_size: int
    is_normalised: bool
    has_bias: bool = False
    shared_size: int | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shapes and constants of a decoder-only transformer. Sizes are in elements, positions in tokens."""

    architecture: str  # the family's name: "gemma3", "llama"
    hidden_size: int
    intermediate_size: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    norm_eps: float
    layers: tuple[LayerSpec, ...]
    attention_scale: float
    tied_embeddings: bool
    activation: str  # "silu", "gelu_tanh", "gelu" or "swiglu_oai"
    norm: NormKind = NormKind.RMS
    norm_place: NormPlace = NormPlace.BEFORE
    norm_plus_one: bool = False  # Hugging Face files store norms less one (Gemma)
    parallel: Parallel = Parallel.NO
    gated_mlp: bool = True
    mlp_bias: bool = False
    experts: ExpertsSpec | None = None
    qkv_bias: bool = False
    output_bias: bool = False  # of attention's output projection
    head_bias: bool = False
    qk_norm: QKNorm = QKNorm.NONE
    qkv_limit: float | None = None  # projections are cut off at this magnitude (OLMo)
    attention_softcap: float | None = None  # c turns a score x into c * tanh(x / c)
    sharpening: SharpeningSpec | None = None
    has_sinks: bool = False  # one more learned score per query head, which gives no value
    embedding_scale: float = 1.0  # Gemma multiplies embeddings by sqrt(hidden_size)
    learned_positions: bool = False  # a table of positions is added to the embeddings (GPT-2)
    residual_scale: float = 1.0  # of what a branch adds
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    checkpoint_dtype: str = "float32"  # dtype of the checkpoint's floats, or "float32" when a GGUF file is quantised
    codes: CodesSpec | None = None  # in which codes the checkpoint's weights are published

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def inner_sizes(self) -> frozenset[int]:
        """Those of the MLPs and experts that its layers have."""
        sizes = {False: {self.intermediate_size}}
        if self.experts is not None:
            shared = self.experts.shared_size
            sizes[True] = {self.experts.intermediate_size, *([] if shared is None else [shared])}
        return frozenset(size for layer in self.layers for size in sizes[layer.is_sparse])

    def for_length(self, max_length: int) -> ModelSpec:
        """The same model for a server of up to ``max_length`` tokens, where a rope rule asks for that; see RopeSpec."""
        return replace(self, layers=tuple(layer.for_length(max_length) for layer in self.layers))
