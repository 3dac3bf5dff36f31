"""Choices: what an EngineConfig comes to on this machine and for this model, before anything is loaded.

Every "auto" is decided here, and a wish that the machine or the model cannot grant is a ConfigError of one sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config import KV_CACHE_DTYPE_ALIASES, Checkpoint, ConfigError, EngineConfig, resolve_checkpoint
from engine.machine import usable_cores
from kernels.attention import AttentionBackend
from kernels.backends import check_page_dtype, choose_backend
from kernels.cpu.dense_product import NativeDense
from models.loader import stored_forms
from models.spec import ModelSpec
from models.weight_forms import Quantization, WeightForms


@dataclass(frozen=True, slots=True)
class Choices:
    """Where and how to compute. ``kv_dtype_name`` is what users call the pages' dtype."""

    checkpoint: Checkpoint
    spec: ModelSpec
    device: torch.device
    threads: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    kv_dtype_name: str
    max_model_len: int
    backend: AttentionBackend
    forms: WeightForms | None
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, config: EngineConfig) -> Choices:
        """Decide. Raises ConfigError or CheckpointError with one sentence."""
        config.validate()
        device = _choose_device(config.device)
        checkpoint = resolve_checkpoint(config.model, revision=config.revision)
        spec = checkpoint.read_spec()
        max_model_len = _choose_max_model_len(config, spec)
        spec = spec.for_length(max_model_len)
        backend, warnings = _choose_backend(device, config.deterministic)
        dtype = _choose_dtype(config.dtype, spec, device, backend)
        if config.max_num_batched_tokens < config.max_num_seqs:
            warnings.append(
                f"steps of --max-num-batched-tokens {config.max_num_batched_tokens} are full when as many streams run: "
                f"no request starts before one of them ends, though --max-num-seqs {config.max_num_seqs} may run"
            )
        if config.most_drafts and device.type != "cpu":
            raise ConfigError(f"--speculative {config.speculative}: not with --device {device.type} yet, only on CPUs")
        threads = config.threads or usable_cores()
        if config.deterministic:
            threads, limits = _limits_of_determinism(threads, spec, device)
            warnings += limits
        forms = choose_forms(config.quantization, backend)
        pages = dtype
        if device.type == "cpu" and dtype == torch.float32 and _has_quantised(forms, checkpoint, spec):
            pages = torch.bfloat16  # costs less than the weights have lost, and halves what attention reads
        kv_dtype_name, kv_dtype = _choose_kv_dtype(config.kv_cache_dtype, pages, device)
        return cls(
            checkpoint=checkpoint,
            spec=spec,
            device=device,
            threads=threads,
            dtype=dtype,
            kv_dtype=kv_dtype,
            kv_dtype_name=kv_dtype_name,
            max_model_len=max_model_len,
            backend=backend,
            forms=forms,
            warnings=(*warnings, *_check_columns(forms, spec), *_check_experts(forms, checkpoint, spec, backend)),
        )

    @property
    def has_own_memory(self) -> bool:
        """Whether the device works by itself, on memory that is not the host's."""
        return self.device.type != "cpu"


def _choose_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: this torch sees no GPU; use --device cpu, or install a CUDA build of torch")
    return torch.device(name)


def _choose_backend(device: torch.device, is_deterministic: bool) -> tuple[AttentionBackend, list[str]]:
    try:
        return choose_backend(device, is_deterministic=is_deterministic)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def choose_forms(quantization: str, backend: AttentionBackend) -> WeightForms | None:
    """What weights are kept as, by the name that a user gives it; ConfigError where there are no kernels for it."""
    kernels = backend.weight_kernels
    if quantization == "none" or (quantization == "auto" and kernels is None):
        return None
    if kernels is None:
        raise ConfigError(f"--quantization {quantization}: CPUs have kernels for it in the native library only")
    return WeightForms(Quantization.STORED if quantization == "auto" else Quantization(quantization), kernels)


def _has_quantised(forms: WeightForms | None, checkpoint: Checkpoint, spec: ModelSpec) -> bool:
    """Whether any weights are multiplied in quantised form."""
    if forms is None or not forms.keeps_stored:
        return forms is not None
    kept, _ = forms.stored_names(stored_forms(checkpoint, spec).values())
    return bool(kept)


def _check_columns(forms: WeightForms | None, spec: ModelSpec) -> list[str]:
    """Warn of matrices that can't be quantised as asked; ConfigError where that is all but the tables."""
    if forms is None or forms.keeps_stored:
        return []
    sizes = {spec.hidden_size, spec.num_q_heads * spec.head_dim, *spec.inner_sizes}
    odd = sorted(size for size in sizes if forms.kind("", size, None) is None)
    if not odd:
        return []
    found = f"--quantization {forms.quantization.value}: matrices of {', '.join(map(str, odd))} columns cannot be cut "
    if len(odd) == len(sizes):
        raise ConfigError(f"{found}into groups of 32, and this model has no others")
    return [f"{found}into groups of 32, and stay floats"]


def _check_experts(
    forms: WeightForms | None, checkpoint: Checkpoint, spec: ModelSpec, backend: AttentionBackend
) -> list[str]:
    """Warn of experts in fewer bits that become floats: where they are multiplied in one stack, that is of floats."""
    if spec.experts is None or backend.expert_product is None or not _has_quantised(forms, checkpoint, spec):
        return []
    return ["experts are floats on this device, which has no kernels yet for stacks of them in fewer bits"]


def _limits_of_determinism(threads: int, spec: ModelSpec, device: torch.device) -> tuple[int, list[str]]:
    """Threads that keep a row's bits apart from its batch on CPUs, and a warning where these are fewer.

    torch computes activations by vectors of up to 32 elements, two at a time where there is no gate, and what is left
    over at the end of a thread's share otherwise, with other last bits. Shares of two threads end where vectors end;
    those of three, to which a step of few rows is cut also where there are more, end anywhere.
    """
    if device.type != "cpu":
        return threads, []
    share = 64 if spec.gated_mlp else 128
    most = 2 if all(size % share == 0 for size in spec.inner_sizes) else 1
    if threads <= most:
        return threads, []
    return most, [f"--deterministic uses {most} of {threads} threads: torch's activations depend on more"]


def _choose_dtype(name: str, spec: ModelSpec, device: torch.device, backend: AttentionBackend) -> torch.dtype:
    if name != "auto":
        dtype = getattr(torch, name)
        assert isinstance(dtype, torch.dtype)
        return dtype
    if spec.checkpoint_dtype not in ("bfloat16", "float16") or (spec.codes is not None and device.type == "cpu"):
        return torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if spec.checkpoint_dtype == "bfloat16" else torch.float16
    # float16 has no fast product on CPUs, and bfloat16 only where oneDNN or the library has one
    native = backend.dense_product
    has_native = isinstance(native, NativeDense) and native.takes_bfloat16
    return torch.bfloat16 if has_native or torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


def _choose_kv_dtype(name: str, by_itself: torch.dtype, device: torch.device) -> tuple[str, torch.dtype]:
    """The dtype of the pages and the name it has among the choices; ``by_itself`` is what auto comes to."""
    if name == "auto":
        return str(by_itself).removeprefix("torch."), by_itself
    name = KV_CACHE_DTYPE_ALIASES.get(name, name)
    kv_dtype = torch.float8_e4m3fn if name == "fp8_e4m3" else getattr(torch, name)
    assert isinstance(kv_dtype, torch.dtype)
    try:
        check_page_dtype(kv_dtype, device)
    except ValueError as error:
        raise ConfigError(f"--kv-cache-dtype {name}: {error}") from error
    return name, kv_dtype


def _choose_max_model_len(config: EngineConfig, spec: ModelSpec) -> int:
    if config.max_model_len is None:
        return spec.max_position
    if config.max_model_len > spec.max_position:
        raise ConfigError(
            f"--max-model-len {config.max_model_len}: the model was made for at most {spec.max_position} tokens"
        )
    return config.max_model_len
