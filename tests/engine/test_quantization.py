"""--quantization in a whole engine: answers that do not depend on company, and wishes that cannot be granted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.choices import _check_columns, _check_experts, choose_forms
from engine.config import ConfigError, EngineConfig, resolve_checkpoint
from engine.startup import StageTimes, build_engine
from kernels.cpu.backend import NativeBackend, TorchBackend
from kernels.cpu.library import NativeLibrary
from models.spec import ModelSpec
from models.weight_forms import Quantization, WeightForms


@pytest.mark.parametrize("directory", ["tiny_llama_dir", "tiny_gemma3_dir", "tiny_mixtral_dir"])
def test_c14_answers_of_quantised_weights_do_not_depend_on_company(
    rig: Callable, directory: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(directory)
    prompts = {f"r{i}": [256, *range(i, i + 5 + 9 * i)] for i in range(6)}
    engine = rig(model, quantization="int8", max_num_batched_tokens=64)
    alone = {name: engine.alone(name, prompt, 20) for name, prompt in prompts.items()}
    engine = rig(model, quantization="int8", max_num_batched_tokens=64, max_num_seqs=6)
    for name, prompt in prompts.items():
        engine.submit(name, prompt, 20)
    engine.run()
    assert {name: engine.tokens(name) for name in prompts} == alone


def test_without_the_native_library_weights_are_floats_or_the_wish_is_refused() -> None:
    assert choose_forms("auto", TorchBackend()) is None
    assert choose_forms("none", NativeBackend(NativeLibrary())) is None
    stored = choose_forms("auto", NativeBackend(NativeLibrary()))
    assert stored is not None
    assert stored.quantization is Quantization.STORED
    with pytest.raises(ConfigError, match="--quantization int8: CPUs have kernels for it in the native library only"):
        choose_forms("int8", TorchBackend())


def with_columns(spec: ModelSpec, hidden_size: int, intermediate_size: int) -> ModelSpec:
    return replace(spec, hidden_size=hidden_size, intermediate_size=intermediate_size, head_dim=hidden_size // 4)


def test_matrices_whose_columns_are_no_groups_stay_floats_with_a_warning_or_refuse(tiny_llama_dir: Path) -> None:
    forms = choose_forms("int4", NativeBackend(NativeLibrary()))
    spec = resolve_checkpoint(str(tiny_llama_dir)).read_spec()
    assert _check_columns(forms, spec) == []
    assert _check_columns(forms, with_columns(spec, 64, 100)) == [
        "--quantization int4: matrices of 100 columns cannot be cut into groups of 32, and stay floats"
    ]
    with pytest.raises(ConfigError, match=r"72, 100 columns cannot be cut .*, and this model has no others"):
        _check_columns(forms, with_columns(spec, 72, 100))
    assert _check_columns(choose_forms("auto", NativeBackend(NativeLibrary())), with_columns(spec, 72, 100)) == []


def test_columns_of_experts_count_where_layers_have_them(tiny_mixtral_dir: Path) -> None:
    forms = choose_forms("int8", NativeBackend(NativeLibrary()))
    spec = resolve_checkpoint(str(tiny_mixtral_dir)).read_spec()
    assert spec.experts is not None
    odd = replace(spec, intermediate_size=100, experts=replace(spec.experts, intermediate_size=72))
    assert _check_columns(forms, odd) == [
        "--quantization int8: matrices of 72 columns cannot be cut into groups of 32, and stay floats"
    ]
    dense_first = replace(odd.layers[0], is_sparse=False)
    [warning] = _check_columns(forms, replace(odd, layers=(dense_first, *odd.layers[1:])))
    assert "matrices of 72, 100 columns" in warning


def test_experts_that_become_floats_are_told(tiny_mixtral_dir: Path, tiny_llama_dir: Path) -> None:
    backend = NativeBackend(NativeLibrary())
    stacking = SimpleNamespace(expert_product=lambda *args: None)
    forms, stored = choose_forms("int8", backend), choose_forms("auto", backend)

    def told(forms: WeightForms | None, model: Path, backend: object) -> list[str]:
        checkpoint = resolve_checkpoint(str(model))
        return _check_experts(forms, checkpoint, checkpoint.read_spec(), backend)

    assert told(forms, tiny_mixtral_dir, stacking) == [
        "experts are floats on this device, which has no kernels yet for stacks of them in fewer bits"
    ]
    assert told(forms, tiny_mixtral_dir, backend) == []
    assert told(forms, tiny_llama_dir, stacking) == []
    assert told(stored, tiny_mixtral_dir, stacking) == []  # nothing in its files is in fewer bits


def test_int8_takes_about_a_byte_for_each_weight_of_an_expert(rig: Callable, tiny_mixtral_dir: Path) -> None:
    plain, quantised = (rig(tiny_mixtral_dir, quantization=form).ready.weight_bytes for form in ("none", "int8"))
    experts = 2 * 6 * 3 * 64 * 128
    assert quantised < plain - experts * 4 + experts * 1.2


def test_an_unknown_form_is_refused(tiny_llama_dir: Path) -> None:
    with pytest.raises(ConfigError, match="--quantization int3: choose one of auto, none, int8, int4"):
        build_engine(EngineConfig(model=str(tiny_llama_dir), quantization="int3"), StageTimes(), lambda progress: None)
