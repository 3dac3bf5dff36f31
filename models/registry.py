"""From a checkpoint's own description to a ModelSpec: the families that Octavo serves.

Reads a parsed ``config.json`` (with ``generation_config.json``) or an open GGUF file; knows nothing of weights, devices
or where checkpoints come from, and imports no torch. Every constant that changes an answer is either read, or refused
when it asks for something the models here do not compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from models.codes.codes_spec import read_codes
from models.errors import CheckpointError
from models.families.falcon import FALCON
from models.families.family import Family
from models.families.gemma import GEMMA
from models.families.gemma2 import GEMMA2
from models.families.gemma3 import GEMMA3
from models.families.gpt2 import GPT2
from models.families.gpt_neox import GPT_NEOX
from models.families.gpt_oss import GPT_OSS
from models.families.granite import GRANITE
from models.families.granite_moe import GRANITE_MOE
from models.families.llama import LLAMA
from models.families.mistral import MISTRAL
from models.families.mixtral import MIXTRAL
from models.families.olmo import OLMO
from models.families.olmo2 import OLMO2
from models.families.olmoe import OLMOE
from models.families.phi import PHI
from models.families.phi3 import PHI3
from models.families.qwen2 import QWEN2
from models.families.qwen2_moe import QWEN2_MOE
from models.families.qwen3 import QWEN3
from models.families.qwen3_moe import QWEN3_MOE
from models.families.rope import check_rope
from models.families.smollm3 import SMOLLM3
from models.families.stablelm import STABLELM
from models.fields import Fields
from models.gguf_description import gguf_fields, gguf_values
from models.gguf_file import GGUFFile
from models.spec import LayerSpec, ModelSpec

FAMILIES: tuple[Family, ...] = (
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    SMOLLM3,
    PHI3,
    PHI,
    MIXTRAL,
    QWEN3_MOE,
    OLMOE,
    GPT_OSS,
    QWEN2_MOE,
    GRANITE_MOE,
    GEMMA,
    GEMMA2,
    GEMMA3,
    OLMO,
    OLMO2,
    GRANITE,
    GPT2,
    GPT_NEOX,
    STABLELM,
    FALCON,
)
_DTYPES = ("float32", "bfloat16", "float16")


def supported_architectures() -> list[str]:
    """Names as ``config.json`` writes them, then as GGUF files do."""
    gguf = [f"{name} (GGUF)" for family in FAMILIES for name in family.gguf_architectures]
    return [*(name for family in FAMILIES for name in family.architectures), *gguf]


def family_of(spec: ModelSpec) -> Family:
    """The family that made ``spec``."""
    return next(family for family in FAMILIES if family.name == spec.architecture)


def spec_from_config(
    config: Mapping[str, object], generation_config: Mapping[str, object] | None = None, *, source: str = "config.json"
) -> ModelSpec:
    """ModelSpec of a Hugging Face ``config.json``; ``source`` names it in errors.

    The token ids of ``generation_config.json`` win over the config's. Raises CheckpointError.
    """
    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else config.get("model_type")
    family = next((one for one in FAMILIES if name in one.architectures), None)
    if family is None:
        raise _unsupported(source, name)
    fields = Fields(config, source)
    quantization = fields.part("quantization_config")
    codes = None if quantization is None else read_codes(quantization)
    generation = Fields(generation_config or {}, source.replace("config.json", "generation_config.json"))
    bos = generation.token_ids("bos_token_id") or fields.token_ids("bos_token_id")
    eos = generation.token_ids("eos_token_id") or fields.token_ids("eos_token_id")
    return replace(_completed(family, fields, bos, eos), codes=codes)


def spec_from_gguf(file: GGUFFile) -> ModelSpec:
    """ModelSpec of a GGUF file's metadata and tensor shapes. Raises CheckpointError."""
    name = file.metadata.get("general.architecture")
    named = [one for one in FAMILIES if name in one.gguf_architectures]
    if not named:
        raise _unsupported(str(file.path), name)
    values = gguf_values(file)
    family = next((one for one in named if one.takes_gguf(values)), named[0])
    fields = gguf_fields(file, family.complete_gguf(values))
    return _completed(family, fields, fields.token_ids("bos_token_id"), fields.token_ids("eos_token_id"))


def _completed(family: Family, fields: Fields, bos: tuple[int, ...], eos: tuple[int, ...]) -> ModelSpec:
    """The family's spec with its special tokens, which must have a row in its vocabulary, and the stored dtype."""
    dtype = fields.get("dtype") or fields.get("torch_dtype")
    read = family.read(fields)
    spec = replace(
        read,
        architecture=family.name,
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=eos,
        checkpoint_dtype=str(dtype) if dtype in _DTYPES else read.checkpoint_dtype,
    )
    spec = replace(spec, layers=tuple(_without_idle_window(layer, spec.max_position) for layer in spec.layers))
    for rope in {id(layer.rope): layer.rope for layer in spec.layers}.values():
        if rope is not None:
            check_rope(rope, spec.head_dim, fields.source)
    for token_id in (*eos, *bos[:1]):
        if not 0 <= token_id < spec.vocab_size:
            raise CheckpointError(
                f"{fields.source}: the special token id {token_id} is outside the vocabulary of "
                f"{spec.vocab_size} tokens"
            )
    return spec


def _without_idle_window(layer: LayerSpec, max_position: int) -> LayerSpec:
    """``layer``, without a window that hides nothing: it would have pages of a kind of its own for that."""
    return replace(layer, window=None) if layer.window is not None and layer.window >= max_position else layer


def _unsupported(source: str, name: object) -> CheckpointError:
    supported = ", ".join(supported_architectures())
    return CheckpointError(f"{source}: the architecture {name!r} is not supported; supported are {supported}")
