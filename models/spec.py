"""ModelSpec: everything about a decoder that serving needs to know before a weight is read.

Torch-free, so that sizing, the scheduler's process and `octavo inspect` can use it cheaply. Read from ``config.json``
or GGUF metadata by ``models.registry``.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of one layer kind.

    ``theta`` is the base; ``scaling`` names a rule ("default", "linear", "llama3", "factors"); ``parameters`` holds the
    rule's numbers under the names that Hugging Face configs use (``factor``, ``low_freq_factor`` and so on). The rule
    "factors" divides each of the head_dim / 2 frequencies by its own ``frequency_factors``, as GGUF files store them.
    """

    theta: float
    scaling: str = "default"
    parameters: dict[str, float] = field(default_factory=dict)
    frequency_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Attention of one layer: ``window`` is the number of visible positions (None: all), with its own rotary base."""

    window: int | None
    rope: RopeSpec


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shapes and constants of a decoder-only transformer. Sizes are in elements, positions in tokens."""

    architecture: str  # our name: "gemma3", "llama"
    hidden_size: int
    intermediate_size: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rms_norm_eps: float
    layers: tuple[LayerSpec, ...]
    attention_scale: float
    tied_embeddings: bool
    activation: str  # "silu" or "gelu_tanh"
    embedding_scale: float = 1.0  # Gemma multiplies embeddings by sqrt(hidden_size)
    attention_bias: bool = False
    qk_norm: bool = False  # RMSNorm over each query and key head before rotation
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    checkpoint_dtype: str = "float32"  # dtype the checkpoint stores, or "float32" when it is quantised

    @property
    def num_layers(self) -> int:
        return len(self.layers)
