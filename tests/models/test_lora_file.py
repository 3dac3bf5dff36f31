"""Adapters that are read, and those that are refused in one sentence with the file and the key."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.checkpoint import resolve_checkpoint
from models.errors import CheckpointError
from models.lora import LoraAdapter, LoraDeltas, LoraPlace
from models.lora_file import read_adapter
from models.lora_source import find_adapter
from models.registry import family_of
from models.tensor_names import Placement, TensorNames
from tests.lora_adapters import ATTENTION, PREFIX, write_adapter

A_NAME = f"{PREFIX}model.layers.0.self_attn.q_proj.lora_A.weight"
B_NAME = f"{PREFIX}model.layers.1.mlp.down_proj.lora_B.weight"
Places = dict[str, LoraPlace]


@pytest.fixture
def places() -> Places:
    """Those of the tiny Llama: 4 query and 2 key heads of 16, hidden 64, inner 128."""
    shapes = {"q_proj": (64, 64), "k_proj": (32, 64), "v_proj": (32, 64), "o_proj": (64, 64)}
    inner = {"gate_proj": (128, 64), "up_proj": (128, 64), "down_proj": (64, 128)}
    return {
        f"model.layers.{layer}.{block}.{name}": LoraPlace(LoraDeltas(None), 0, *shape)
        for layer in range(2)
        for block, parts in (("self_attn", shapes), ("mlp", inner))
        for name, shape in parts.items()
    }


@pytest.fixture
def read(tiny_llama_dir: Path, places: Places) -> Callable[..., LoraAdapter]:
    spec = resolve_checkpoint(str(tiny_llama_dir)).read_spec()

    def read(directory: Path, *, max_rank: int = 64, names: TensorNames | None = None) -> LoraAdapter:
        return read_adapter(directory, spec, names or family_of(spec).names, places, max_rank=max_rank)

    return read


@pytest.fixture
def adapter(tiny_llama_dir: Path, tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", tiny_llama_dir, seed=1)


def change(adapter: Path, **config: object) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))


def change_tensors(adapter: Path, changes: dict[str, torch.Tensor | None]) -> None:
    file = adapter / "adapter_model.safetensors"
    weights = load_file(file) | changes
    save_file({name: values for name, values in weights.items() if values is not None}, file)


def test_an_adapter_has_the_weights_of_each_projection_with_the_scale_in_b(read, adapter: Path, tiny_llama_dir) -> None:
    change(adapter, lora_alpha=12)
    found = read(adapter)
    stored = load_file(adapter / "adapter_model.safetensors")
    assert len(found.weights) == 14
    weights = found.weights["model.layers.0.self_attn.q_proj"]
    assert torch.equal(weights.a, stored[A_NAME])
    assert torch.equal(weights.b, 3 * stored[A_NAME.replace("lora_A", "lora_B")])
    assert found.rank == 4
    assert found.num_bytes == sum(values.nbytes for values in stored.values())


def test_equal_adapters_have_one_digest_and_others_another(read, adapter: Path, tiny_llama_dir, tmp_path: Path) -> None:
    same = write_adapter(tmp_path / "same", tiny_llama_dir, seed=1, lora_dropout=0.5)
    other = write_adapter(tmp_path / "other", tiny_llama_dir, seed=2)
    stronger = write_adapter(tmp_path / "stronger", tiny_llama_dir, seed=1, lora_alpha=5)
    digests = [read(one).digest for one in (adapter, same, other, stronger)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_a_module_that_holds_several_projections_gives_each_its_rows(read, tmp_path: Path) -> None:
    def cut(spec):
        yield Placement("self_attn.q_proj", slice(0, 64))
        yield Placement("self_attn.k_proj", slice(64, 96))
        yield Placement("self_attn.v_proj", slice(96, 128))

    names = TensorNames("model.layers.", {}, {"self_attn.qkv_proj": cut})
    a, b = torch.randn(4, 64), torch.randn(128, 4)
    stem = f"{PREFIX}model.layers.0.self_attn.qkv_proj"
    save_file({f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 4}))
    weights = read(tmp_path, names=names).weights
    assert list(weights) == [f"model.layers.0.self_attn.{name}_proj" for name in "qkv"]
    for (start, end), part in zip(((0, 64), (64, 96), (96, 128)), weights.values(), strict=True):
        assert torch.equal(part.a, a)
        assert torch.equal(part.b, b[start:end])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora is true, and DoRA"),
        ({"bias": "lora_only"}, 'bias is "lora_only"'),
        ({"lora_bias": True}, "lora_bias is true"),
        ({"modules_to_save": ["lm_head"]}, 'modules_to_save is ["lm_head"]'),
        ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters"),
        ({"trainable_token_indices": [5]}, "trainable_token_indices is [5]"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"use_qalora": True}, "use_qalora"),
        ({"r": 0}, "r is 0, and should be a number of at least 1"),
        ({"r": "8"}, 'r is "8"'),
        ({"r": True}, "r is true"),
        ({"lora_alpha": "many"}, 'lora_alpha is "many"'),
        ({"rank_pattern": {"q_proj": -1}}, "rank_pattern.q_proj is -1"),
        ({"alpha_pattern": ["q_proj"]}, 'alpha_pattern is ["q_proj"]'),
        ({"rank_pattern": {"q_proj(": 8}}, "'q_proj(', which is no regular expression"),
        ({"rank_pattern": {"(?i)q_proj": 8}}, "'(?i)q_proj', which is no regular expression"),
        ({"lora_alpha": 10**400}, "lora_alpha is 1000"),
        ({"alpha_pattern": {r"([a-z_.]+)+!": 8}}, "'([a-z_.]+)+!', which repeats groups"),
        ({"alpha_pattern": {".*.*.*.*!": 8}}, "'.*.*.*.*!', which repeats groups, or more than 3 times"),
    ],
)
def test_a_config_that_asks_for_more_names_the_key_and_the_file(
    read, adapter: Path, config: dict[str, object], words: str
) -> None:
    change(adapter, **config)
    with pytest.raises(CheckpointError) as refused:
        read(adapter)
    assert str(refused.value).startswith(f"{adapter}/adapter_config.json: ")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not JSON"),
        (b"[]", "should hold a JSON object"),
        (b"[" * 100_000, "is nested too deeply"),
        (b" " * 1_048_577, "is 1048577 bytes long"),
        (None, "no adapter in PEFT's"),
    ],
)
def test_a_config_that_is_none_is_refused(read, adapter: Path, content: bytes | None, words: str) -> None:
    file = adapter / "adapter_config.json"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        read(adapter)


def test_a_config_that_is_a_device_or_a_pipe_is_not_waited_for(read, adapter: Path) -> None:
    file = adapter / "adapter_config.json"
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=r"adapter_config\.json is not a file"):
        read(adapter)


def test_a_scale_that_takes_weights_beyond_floats_is_refused(read, adapter: Path) -> None:
    change(adapter, lora_alpha=1e308)
    with pytest.raises(CheckpointError, match=r"'model\.layers\.0\.\S+, times its scale 2\.5e\+307, is not finite"):
        read(adapter)


def test_a_projection_that_two_modules_change_is_refused(read, adapter: Path) -> None:
    names = TensorNames("model.layers.", {}, {"self_attn.q_proj": "self_attn.q_proj", "attn.q": "self_attn.q_proj"})
    weights = load_file(adapter / "adapter_model.safetensors")
    own = {name: values for name, values in weights.items() if "q_proj" in name}
    again = {name.replace("self_attn.q_proj", "attn.q"): values.clone() for name, values in own.items()}
    save_file(own | again, adapter / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r"changes 'model\.layers\.0\.self_attn\.q_proj', which another"):
        read(adapter, names=names)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({A_NAME: torch.zeros(8, 64)}, f"{A_NAME!r} has the shape (8, 64) and should have (4, 64)"),
        ({A_NAME: torch.zeros(4, 60)}, f"{A_NAME!r} has the shape (4, 60) and should have (4, 64)"),
        ({B_NAME: torch.zeros(63, 4)}, f"{B_NAME!r} has the shape (63, 4) and should have (64, 4)"),
        ({B_NAME: torch.zeros(64)}, f"{B_NAME!r} has the shape (64,) and should have (64, 4)"),
        ({A_NAME: None}, f"is there without {A_NAME!r}"),
        ({A_NAME: torch.zeros(4, 64, dtype=torch.int8)}, f"{A_NAME!r} is of torch.int8"),
        ({A_NAME: torch.full((4, 64), torch.nan)}, f"{A_NAME!r} has values that are not finite"),
        ({"model.layers.0.x": torch.zeros(1)}, "'model.layers.0.x' is neither A nor B"),
        ({f"{PREFIX}model.embed_tokens.lora_embedding_A": torch.zeros(1)}, "lora_embedding_A' is neither A nor B"),
        ({A_NAME.replace("lora_A", "lora_magnitude_vector"): torch.zeros(1)}, "is neither A nor B"),
    ],
)
def test_a_wrong_tensor_is_named_with_both_shapes_and_the_file(
    read, adapter: Path, changes: dict[str, torch.Tensor | None], words: str
) -> None:
    change_tensors(adapter, changes)
    with pytest.raises(CheckpointError) as refused:
        read(adapter)
    assert str(refused.value).startswith(f"{adapter}/adapter_model.safetensors: ")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("lm_head", "the adapter changes 'lm_head'; only"),
        ("model.layers.0.input_layernorm", "the adapter changes 'model.layers.0.input_layernorm'; only"),
        ("model.layers.0.self_attn.x_proj", "the model has no 'model.layers.0.self_attn.x_proj'"),
        ("model.layers.9.mlp.up_proj", "the model has no 'model.layers.9.mlp.up_proj'"),
        ("model.layers.00.self_attn.o_proj", "the model has no 'model.layers.00.self_attn.o_proj'"),
        (f"model.layers.{'9' * 5000}.mlp.up_proj", "the model has no 'model.layers.999"),
    ],
)
def test_a_module_that_takes_no_adapter_is_named(read, adapter: Path, module: str, words: str) -> None:
    a, b = torch.zeros(4, 64), torch.zeros(64, 4)
    change_tensors(adapter, {f"{PREFIX}{module}.lora_A.weight": a, f"{PREFIX}{module}.lora_B.weight": b})
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors") as refused:
        read(adapter)
    assert words in str(refused.value)


def test_a_rank_above_the_limit_is_refused_and_one_at_the_limit_is_not(read, tiny_llama_dir, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a", tiny_llama_dir, seed=1, ranks={"1.mlp.up_proj": 8})
    assert read(adapter, max_rank=8).rank == 8
    with pytest.raises(CheckpointError, match=r"'model.layers.1.mlp.up_proj' has rank 8, above --max-lora-rank 7"):
        read(adapter, max_rank=7)


def test_pickles_are_not_opened(read, adapter: Path) -> None:
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"has only adapter_model.bin, a pickle"):
        read(adapter)
    (adapter / "adapter_model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"has no adapter_model.safetensors"):
        read(adapter)


def test_a_damaged_or_empty_file_is_refused(read, adapter: Path) -> None:
    file = adapter / "adapter_model.safetensors"
    save_file({}, file)
    with pytest.raises(CheckpointError, match="holds no weights"):
        read(adapter)
    file.write_bytes(b"\xff" * 100)
    with pytest.raises(CheckpointError, match="is not a readable safetensors file"):
        read(adapter)


def test_a_directory_is_found_and_what_is_neither_that_nor_a_hub_id_is_refused(adapter: Path, monkeypatch) -> None:
    monkeypatch.chdir(adapter.parent)
    assert find_adapter("adapter") == adapter
    for source in ("", "nowhere", "/nowhere/at/all", "a/b:c"):
        with pytest.raises(CheckpointError, match="neither a directory nor a hub id"):
            find_adapter(source)


def test_projections_of_another_models_shape_do_not_fit(read, adapter: Path, places: Places) -> None:
    name = "model.layers.0.self_attn.k_proj"
    places[name] = replace(places[name], outputs=16)
    with pytest.raises(
        CheckpointError, match=r"k_proj.lora_B.weight' has the shape \(32, 4\) and should have \(16, 4\)"
    ):
        read(adapter)


@pytest.mark.parametrize("targets", [ATTENTION[:1], ATTENTION])
def test_half_precision_is_read_as_it_is(read, tiny_llama_dir, tmp_path: Path, targets: tuple[str, ...]) -> None:
    adapter = write_adapter(tmp_path / "a", tiny_llama_dir, seed=1, targets=targets, dtype=torch.bfloat16)
    weights = read(adapter).weights["model.layers.0.self_attn.q_proj"]
    assert weights.a.dtype is torch.float32
    assert torch.equal(weights.a, load_file(adapter / "adapter_model.safetensors")[A_NAME].float())
