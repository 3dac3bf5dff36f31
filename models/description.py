"""Description: what a checkpoint says of itself, without its weights: a spec, headers of tensors, its text side.

Of a model on the hub only descriptions and headers are read, unless its weights are here anyway. Imports no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from models.checkpoint import Checkpoint, CheckpointFormat, read_json, resolve_checkpoint
from models.errors import CheckpointError
from models.hub import HubId, HubRepository, Reach
from models.model_files import CONFIG, choose_files
from models.registry import spec_from_gguf
from models.spec import ModelSpec
from models.weight_census import StoredTensor, WeightCensus

_READ_ANYWAY = ("config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja")
_GGUF_TOKENIZERS = {"llama": "SentencePiece BPE", "gpt2": "byte-level BPE", "t5": "unigram", "bert": "WordPiece"}
_TOKENIZER_KIND = re.compile(rb'"model"\s*:\s*\{\s*"type"\s*:\s*"(\w+)"')


@dataclass(frozen=True, slots=True)
class Description:
    """``tokenizer`` is its kind in words, None where there is none."""

    name: str
    spec: ModelSpec
    weights: WeightCensus
    tokenizer: str | None
    has_chat_template: bool


def describe(model: str | None, *, revision: str | None = None, offline: bool = False) -> Description:
    """Describe what `resolve_checkpoint` would find. Raises CheckpointError."""
    hub_id = None if model is None or Path(model).expanduser().exists() else HubId.parse(model)
    try:
        return _describe_local(resolve_checkpoint(model, revision=revision, offline=offline or hub_id is not None))
    except CheckpointError:
        if hub_id is None or offline:
            raise
    repository = HubRepository(hub_id.repository, revision)
    if repository.reach is not Reach.ONLINE:
        raise CheckpointError(f"{repository} cannot be described: what the cache has of it is not a whole model")
    return _describe_remote(repository, hub_id)


def weight_census(checkpoint: Checkpoint, spec: ModelSpec) -> WeightCensus:
    """What the headers of the files of ``checkpoint`` say of its weights."""
    if checkpoint.format is CheckpointFormat.GGUF:
        tensors = [
            StoredTensor(one.name, one.quantization.name, one.shape, one.data.nbytes)
            for one in checkpoint.gguf_file.tensors.values()
        ]
        return WeightCensus.of(tensors, spec)
    tensors = [
        StoredTensor(one.name, one.dtype, one.shape, one.data.nbytes)
        for file in checkpoint.safetensors_files
        for one in file.tensors.values()
    ]
    return WeightCensus.of(tensors, spec, _code_bits(checkpoint))


def _describe_local(checkpoint: Checkpoint) -> Description:
    if checkpoint.format is CheckpointFormat.GGUF:
        file = checkpoint.gguf_file
        spec = spec_from_gguf(file)
        kind = file.metadata.get("tokenizer.ggml.model")
        has_template = "tokenizer.chat_template" in file.metadata
        tokenizer = _GGUF_TOKENIZERS.get(kind, kind) if isinstance(kind, str) else None
        return Description(checkpoint.name, spec, weight_census(checkpoint, spec), tokenizer, has_template)
    spec = checkpoint.read_spec()
    names = frozenset(path.name for path in checkpoint.path.iterdir())
    return _describe_directory(checkpoint, spec, weight_census(checkpoint, spec), names)


def _describe_remote(repository: HubRepository, hub_id: HubId) -> Description:
    is_gguf = hub_id.wanted is not None
    if not is_gguf:
        is_gguf = choose_files(repository.files, str(repository), lambda: None).format is CheckpointFormat.GGUF
    if is_gguf:
        raise CheckpointError(
            f"{hub_id.repository} is a GGUF model that is not in the cache, and its header cannot be read from afar: "
            "download it first, as octavo serve does"
        )
    path = repository.download(name for name in _READ_ANYWAY if name in repository.files)
    tensors = [StoredTensor(*one) for one in repository.safetensors_headers()]
    checkpoint = Checkpoint(repository.name, path, CheckpointFormat.SAFETENSORS)
    spec = checkpoint.read_spec()
    weights = WeightCensus.of(tensors, spec, _code_bits(checkpoint))
    return _describe_directory(checkpoint, spec, weights, repository.files)


def _code_bits(checkpoint: Checkpoint) -> int | None:
    quantised = read_json(checkpoint.path / CONFIG).get("quantization_config")
    bits = quantised.get("bits") if isinstance(quantised, dict) else None
    return bits if isinstance(bits, int) and bits > 0 else None


def _describe_directory(
    checkpoint: Checkpoint, spec: ModelSpec, weights: WeightCensus, names: frozenset[str]
) -> Description:
    """``names``: of the files there are, also of those that are not here."""
    path = checkpoint.path
    tokenizer = None
    if "tokenizer.json" in names:
        file = path / "tokenizer.json"
        kind = _TOKENIZER_KIND.search(file.read_bytes()) if file.exists() else None
        tokenizer = f"tokenizer.json ({kind[1].decode()})" if kind else "tokenizer.json"
    elif "tokenizer.model" in names:
        tokenizer = "tokenizer.model (SentencePiece)"
    config = path / "tokenizer_config.json"
    has_template = "chat_template.jinja" in names or (config.exists() and "chat_template" in read_json(config))
    return Description(checkpoint.name, spec, weights, tokenizer, has_template)
