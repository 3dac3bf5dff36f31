"""From a checkpoint's own description to a ModelSpec: the architectures that Octavo serves.

Reads a parsed ``config.json`` (with ``generation_config.json``) or an open GGUF file; knows nothing of weights, devices
or where checkpoints come from, and imports no torch. Every constant that changes an answer is either read, or refused
when it asks for something the models here do not compute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gguf.constants import GGMLQuantizationType

from models.errors import CheckpointError
from models.gguf_file import GGUFFile
from models.spec import LayerSpec, ModelSpec, RopeSpec

_GEMMA3_PATTERN = 6  # five sliding layers, then one that sees everything
_GEMMA3_LOCAL_THETA = 10_000.0
_LLAMA3_PARAMETERS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_MAX_LAYERS = 1024
_DTYPES = ("float32", "bfloat16", "float16")
_MISSING = object()


class _Fields:
    """Typed access to one description; a failure names the key and the source."""

    def __init__(self, values: Mapping[str, object], source: str, prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix
        self.source = source

    def get(self, key: str) -> object:
        """The value, or None when it is missing or null."""
        return self._values.get(self._prefix + key)

    def error(self, key: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {self._prefix}{key} {problem}")

    def integer(self, key: str, default: object = _MISSING) -> int:
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.error(key, f"should be a positive whole number and is {value!r}")
        return value

    def layer_count(self, key: str) -> int:
        """A number of layers; a damaged one must not become gigabytes of layer descriptions."""
        count = self.integer(key)
        if count > _MAX_LAYERS:
            raise self.error(key, f"is {count}, more layers than any model has")
        return count

    def number(self, key: str, default: object = _MISSING) -> float:
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(key, f"should be a positive number and is {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"should be true or false and is {value!r}")
        return value

    def refuse_unless(self, key: str, *allowed: object) -> None:
        """Refuse a value that the model would have to compute and does not; missing and null are allowed."""
        value = self.get(key)
        if value is not None and value not in allowed:
            raise self.error(key, f"is {value!r}, which is not supported")

    def token_ids(self, key: str) -> tuple[int, ...]:
        value = self.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(token_id, bool) or not isinstance(token_id, int) for token_id in ids):
            raise self.error(key, f"should be a token id or a list of them and is {value!r}")
        return tuple(dict.fromkeys(ids))

    def _required(self, key: str, default: object) -> object:
        value = self.get(key)
        if value is None:
            value = default
        if value is _MISSING:
            raise CheckpointError(f"{self.source}: the key {self._prefix + key!r} is missing")
        return value


def supported_architectures() -> list[str]:
    """Names as ``config.json`` writes them, then as GGUF files do."""
    return [*_CONFIG_READERS, *(f"{name} (GGUF)" for name in _GGUF_READERS)]


def spec_from_config(
    config: Mapping[str, object], generation_config: Mapping[str, object] | None = None, *, source: str = "config.json"
) -> ModelSpec:
    """ModelSpec of a Hugging Face ``config.json``; ``source`` names it in errors.

    The token ids of ``generation_config.json`` win over the config's. Raises CheckpointError.
    """
    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else config.get("model_type")
    reader = _CONFIG_READERS.get(name) if isinstance(name, str) else None
    if reader is None:
        raise _unsupported(source, name)
    fields = _Fields(config, source)
    if fields.get("quantization_config") is not None:
        raise CheckpointError(f"{source}: quantization_config is not supported; serve the plain weights or a GGUF file")
    generation = _Fields(generation_config or {}, source.replace("config.json", "generation_config.json"))
    bos = generation.token_ids("bos_token_id") or fields.token_ids("bos_token_id")
    eos = generation.token_ids("eos_token_id") or fields.token_ids("eos_token_id")
    return _with_known_tokens(reader(fields, bos[0] if bos else None, eos), source)


def spec_from_gguf(file: GGUFFile) -> ModelSpec:
    """ModelSpec of a GGUF file's metadata and tensor shapes. Raises CheckpointError."""
    name = file.metadata.get("general.architecture")
    reader = _GGUF_READERS.get(name) if isinstance(name, str) else None
    if reader is None:
        raise _unsupported(str(file.path), name)
    spec = reader(file, _Fields(file.metadata, str(file.path), prefix=f"{name}."))
    return _with_known_tokens(spec, str(file.path))


def _with_known_tokens(spec: ModelSpec, source: str) -> ModelSpec:
    """The spec, whose special tokens must have a row in its vocabulary."""
    specials = [*spec.eos_token_ids, *([] if spec.bos_token_id is None else [spec.bos_token_id])]
    for token_id in specials:
        if not 0 <= token_id < spec.vocab_size:
            raise CheckpointError(
                f"{source}: the special token id {token_id} is outside the vocabulary of {spec.vocab_size} tokens"
            )
    return spec


def _unsupported(source: str, name: object) -> CheckpointError:
    supported = ", ".join(supported_architectures())
    return CheckpointError(f"{source}: the architecture {name!r} is not supported; supported are {supported}")


def _config_dtype(fields: _Fields) -> str:
    dtype = fields.get("dtype") or fields.get("torch_dtype")
    return str(dtype) if dtype in _DTYPES else "float32"


def _config_rope(fields: _Fields, theta: float, scaling: object) -> RopeSpec:
    """``scaling`` is a config's ``rope_scaling``, or an entry of the newer ``rope_parameters``, with theta in it."""
    if scaling is None:
        return RopeSpec(theta)
    if not isinstance(scaling, dict):
        raise fields.error("rope_scaling", f"should be an object and is {scaling!r}")
    rule = _Fields(scaling, fields.source, prefix="")
    theta = rule.number("rope_theta", theta)
    name = scaling.get("rope_type") or scaling.get("type") or "default"
    wanted = {"default": (), "linear": ("factor",), "llama3": _LLAMA3_PARAMETERS}.get(str(name))
    if wanted is None:
        raise fields.error("rope_scaling", f"is of type {name!r}; supported are default, linear and llama3")
    return RopeSpec(theta, str(name), {key: rule.number(key) for key in wanted})


def _heads(fields: _Fields, num_q_heads: int, num_kv_heads: int) -> None:
    if num_q_heads % num_kv_heads:
        raise CheckpointError(f"{fields.source}: {num_q_heads} query heads cannot share {num_kv_heads} key heads")


def _llama_config(fields: _Fields, bos: int | None, eos: tuple[int, ...]) -> ModelSpec:
    fields.refuse_unless("hidden_act", "silu")
    fields.refuse_unless("mlp_bias", False)
    hidden_size = fields.integer("hidden_size")
    num_q_heads = fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", num_q_heads)
    _heads(fields, num_q_heads, num_kv_heads)
    head_dim = fields.integer("head_dim", hidden_size // num_q_heads)
    window = None if fields.get("sliding_window") is None else fields.integer("sliding_window")
    rope = _config_rope(
        fields, fields.number("rope_theta", 10_000.0), fields.get("rope_parameters") or fields.get("rope_scaling")
    )
    return ModelSpec(
        architecture="llama",
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=fields.integer("vocab_size"),
        max_position=fields.integer("max_position_embeddings"),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        layers=(LayerSpec(window, rope),) * fields.layer_count("num_hidden_layers"),
        attention_scale=head_dim**-0.5,
        tied_embeddings=fields.flag("tie_word_embeddings", default=False),
        activation="silu",
        attention_bias=fields.flag("attention_bias", default=False),
        bos_token_id=bos,
        eos_token_ids=eos,
        checkpoint_dtype=_config_dtype(fields),
    )


def _llama_without_window(fields: _Fields, bos: int | None, eos: tuple[int, ...]) -> ModelSpec:
    fields.refuse_unless("sliding_window")
    return _llama_config(fields, bos, eos)


def _gemma3_config(fields: _Fields, bos: int | None, eos: tuple[int, ...]) -> ModelSpec:
    fields.refuse_unless("hidden_activation", "gelu_pytorch_tanh")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        fields.refuse_unless(key)
    for key in ("attention_bias", "use_bidirectional_attention"):
        fields.refuse_unless(key, False)
    hidden_size = fields.integer("hidden_size")
    num_q_heads = fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads")
    _heads(fields, num_q_heads, num_kv_heads)
    full, sliding = _gemma3_ropes(fields)
    window = fields.integer("sliding_window")
    layers = tuple(
        LayerSpec(window, sliding) if kind == "sliding_attention" else LayerSpec(None, full)
        for kind in _gemma3_layer_types(fields)
    )
    return ModelSpec(
        architecture="gemma3",
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=fields.integer("head_dim", 256),
        vocab_size=fields.integer("vocab_size"),
        max_position=fields.integer("max_position_embeddings"),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        layers=layers,
        attention_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        tied_embeddings=fields.flag("tie_word_embeddings", default=True),
        activation="gelu_tanh",
        embedding_scale=hidden_size**0.5,
        qk_norm=True,
        bos_token_id=bos,
        eos_token_ids=eos,
        checkpoint_dtype=_config_dtype(fields),
    )


def _gemma3_layer_types(fields: _Fields) -> list[str]:
    num_layers = fields.layer_count("num_hidden_layers")
    kinds = fields.get("layer_types")
    if kinds is None:
        pattern = fields.integer("sliding_window_pattern", _GEMMA3_PATTERN)
        return ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(num_layers)]
    known = ("sliding_attention", "full_attention")
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in known for kind in kinds):
        raise fields.error("layer_types", f"should name one of {known} for each of {num_layers} layers")
    return kinds


def _gemma3_ropes(fields: _Fields) -> tuple[RopeSpec, RopeSpec]:
    """(full, sliding). Only full layers are ever scaled."""
    theta = fields.number("rope_theta", 1_000_000.0)
    local_theta = fields.number("rope_local_base_freq", _GEMMA3_LOCAL_THETA)
    parameters = fields.get("rope_parameters")
    if isinstance(parameters, dict) and ("full_attention" in parameters or "sliding_attention" in parameters):
        full = _config_rope(fields, theta, parameters.get("full_attention"))
        return full, _config_rope(fields, local_theta, parameters.get("sliding_attention"))
    return _config_rope(fields, theta, parameters or fields.get("rope_scaling")), RopeSpec(local_theta)


def _gguf_rope(file: GGUFFile, fields: _Fields, theta: float) -> RopeSpec:
    factors = file.tensors.get("rope_freqs.weight")
    if factors is not None and factors.quantization is GGMLQuantizationType.F32:
        return RopeSpec(theta, "factors", frequency_factors=tuple(factors.data.view("<f4").tolist()))
    kind = fields.get("rope.scaling.type")
    if kind in (None, "none"):
        return RopeSpec(theta)
    if kind == "linear":
        return RopeSpec(theta, "linear", {"factor": fields.number("rope.scaling.factor")})
    raise fields.error("rope.scaling.type", f"is {kind!r}; supported are none and linear")


def _gguf_spec(
    file: GGUFFile, fields: _Fields, layers: tuple[LayerSpec, ...], *, default_head_dim: int, gemma: bool
) -> ModelSpec:
    embedding = file.tensors.get("token_embd.weight")
    projection = file.tensors.get("blk.0.attn_q.weight")
    if embedding is None or projection is None:
        missing = "token_embd.weight" if embedding is None else "blk.0.attn_q.weight"
        raise CheckpointError(f"{file.path}: the tensor {missing!r} is missing")
    hidden_size = fields.integer("embedding_length")
    num_q_heads = fields.integer("attention.head_count")
    num_kv_heads = fields.integer("attention.head_count_kv", num_q_heads)
    _heads(fields, num_q_heads, num_kv_heads)
    head_dim = fields.integer("attention.key_length", default_head_dim)
    fields.refuse_unless("attention.value_length", head_dim)
    fields.refuse_unless("rope.dimension_count", head_dim)
    stored = {GGMLQuantizationType.BF16: "bfloat16", GGMLQuantizationType.F16: "float16"}
    tokenizer = _Fields(file.metadata, str(file.path), prefix="tokenizer.ggml.")
    bos = tokenizer.token_ids("bos_token_id")
    eos = tokenizer.token_ids("eos_token_id") + tokenizer.token_ids("eot_token_id")
    # Gemma 3 27B is the one Gemma whose scale is not that of its head_dim; its depth tells it apart, as in llama.cpp.
    scale_dim = hidden_size // num_q_heads if gemma and len(layers) == 62 else head_dim
    return ModelSpec(
        architecture="gemma3" if gemma else "llama",
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=embedding.shape[0],
        max_position=fields.integer("context_length"),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        layers=layers,
        attention_scale=scale_dim**-0.5,
        tied_embeddings="output.weight" not in file.tensors,
        activation="gelu_tanh" if gemma else "silu",
        embedding_scale=hidden_size**0.5 if gemma else 1.0,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        qk_norm=gemma,
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=tuple(dict.fromkeys(eos)),
        checkpoint_dtype=stored.get(projection.quantization, "float32"),
    )


def _llama_gguf(file: GGUFFile, fields: _Fields) -> ModelSpec:
    fields.refuse_unless("expert_count", 0)
    rope = _gguf_rope(file, fields, fields.number("rope.freq_base", 10_000.0))
    layers = (LayerSpec(None, rope),) * fields.layer_count("block_count")
    head_dim = fields.integer("embedding_length") // fields.integer("attention.head_count")
    return _gguf_spec(file, fields, layers, default_head_dim=head_dim, gemma=False)


def _gemma3_gguf(file: GGUFFile, fields: _Fields) -> ModelSpec:
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        fields.refuse_unless(key, 0.0)
    full = _gguf_rope(file, fields, fields.number("rope.freq_base", 1_000_000.0))
    sliding = RopeSpec(fields.number("rope.freq_base_swa", _GEMMA3_LOCAL_THETA))
    window = fields.integer("attention.sliding_window")
    pattern = fields.integer("attention.sliding_window_pattern", _GEMMA3_PATTERN)
    layers = tuple(
        LayerSpec(window, sliding) if (i + 1) % pattern else LayerSpec(None, full)
        for i in range(fields.layer_count("block_count"))
    )
    return _gguf_spec(file, fields, layers, default_head_dim=256, gemma=True)


_CONFIG_READERS = {
    "LlamaForCausalLM": _llama_without_window,
    "MistralForCausalLM": _llama_config,
    "Gemma3ForCausalLM": _gemma3_config,
    "gemma3_text": _gemma3_config,
}
_GGUF_READERS = {"llama": _llama_gguf, "gemma3": _gemma3_gguf}
