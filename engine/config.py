"""EngineConfig: what a user chose about the engine, validated once.

Holds choices only; what the machine then gives (threads, pages, bytes) is in `EngineReady`. Re-exports the checkpoint
types, so that the API process can resolve a model name without importing the models' package, let alone torch.
"""

from __future__ import annotations

import math

import msgspec

from engine.errors import ConfigError
from engine.log_format import LogFormat
from models.checkpoint import Checkpoint, resolve_checkpoint
from models.errors import CheckpointError
from models.lora_source import find_adapter

__all__ = ["Checkpoint", "CheckpointError", "ConfigError", "EngineConfig", "find_adapter", "resolve_checkpoint"]

DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = (*DTYPES, "int8", "fp8_e4m3")
KV_CACHE_DTYPE_ALIASES = {"fp8": "fp8_e4m3"}
QUANTIZATIONS = ("auto", "none", "int8", "int4")
DEVICES = ("auto", "cpu", "cuda")
SPECULATIVE_METHODS = ("none", "ngram")
MAX_SPECULATIVE_TOKENS = 64
MAX_LORA_RANK = 1024
SCHEDULING_POLICIES = ("fcfs", "priority", "fair")
MAX_NUM_SEQS = 16_384  # rows of block tables are reserved for each
MAX_THREADS = 1024
MAX_INTEGER = 2**63 - 1  # what a message to the engine can hold


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Choices for one engine.

    Sizes in tokens unless named otherwise. None means: derive it from the model and the machine. ``dtype`` "auto"
    is the checkpoint's own 16-bit type, or float32 where the checkpoint is quantised. ``quantization`` "auto" keeps
    weights in the bits of a GGUF file where there are kernels for that, "none" makes them ``dtype``, int8 and int4
    quantise any weights. ``keep_packed_weights``: what CPUs make of them is kept on disk, for the next start to map.
    ``kv_cache_dtype`` "auto" is the dtype computed with, but bfloat16 beside quantised
    weights on CPUs; int8 and fp8_e4m3 (also "fp8") pages are quantised. The KV budget is, in this order,
    ``num_gpu_blocks_override`` pages, ``kv_cache_memory_bytes``, or the share ``gpu_memory_utilization`` of the
    device's memory (on CPUs, of the memory this process may still take). ``swap_space_bytes`` of host memory take
    evicted prefixes and preempted sequences. Every page is accounted for when the engine falls idle, and every
    ``audit_interval`` steps.

    ``scheduling_policy`` orders requests; ``priority_aging`` are the seconds of waiting that make up for one level of
    priority, and ``tenant_weights`` the shares of tenants (1 where there is none). Requests beyond
    ``max_queued_requests`` or ``max_queued_tokens`` are refused, and those that wait longer than ``queue_timeout``
    seconds; None: for ever. ``long_prefill_token_threshold``, ``watermark_tokens`` and ``max_overtakes`` are explained
    in `SchedulerConfig`. ``async_scheduling``: schedule a step while the one before it runs.
    ``speculative`` "ngram": compute up to ``num_speculative_tokens`` tokens more in a step of a request, on the chance
    that those which followed the same few earlier in its text follow again.

    ``adapters`` are loaded at the start, by name, from directories in PEFT's layout; no part may be of a rank above
    ``max_lora_rank``. ``skips_lost_adapters``: one that cannot be loaded is left out with a warning, instead of keeping
    the engine from starting.

    ``enforce_eager``: launch every step on a GPU kernel by kernel, without CUDA graphs. ``deterministic``: a request's
    logits have the same bits whatever runs beside it and however its prompt is cut, at some cost in speed.
    ``log_format`` is that of what the engine's process writes to stderr.
    """

    model: str
    revision: str | None = None
    dtype: str = "auto"
    quantization: str = "auto"
    keep_packed_weights: bool = True
    kv_cache_dtype: str = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = 16
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool = True
    swap_space_bytes: int = 0
    threads: int | None = None
    seed: int | None = None
    audit_interval: int | None = None
    scheduling_policy: str = "fcfs"
    priority_aging: float = 10.0
    tenant_weights: dict[str, float] = {}
    long_prefill_token_threshold: int | None = None
    max_queued_requests: int = 1024
    max_queued_tokens: int = 1_048_576
    queue_timeout: float | None = None
    watermark_tokens: int = 32
    max_overtakes: int = 16
    async_scheduling: bool = False
    speculative: str = "none"
    num_speculative_tokens: int = 4
    adapters: dict[str, str] = {}
    max_lora_rank: int = 64
    skips_lost_adapters: bool = False
    enforce_eager: bool = False
    deterministic: bool = False
    log_format: LogFormat = LogFormat.TEXT

    @property
    def most_drafts(self) -> int:
        """Tokens that may be guessed for a request in a step."""
        return 0 if self.speculative == "none" else self.num_speculative_tokens

    def validate(self) -> None:
        """Raise ConfigError for the first setting that cannot work."""
        if self.dtype not in DTYPES:
            raise ConfigError(f"--dtype {self.dtype}: choose one of {', '.join(DTYPES)}")
        if self.quantization not in QUANTIZATIONS:
            raise ConfigError(f"--quantization {self.quantization}: choose one of {', '.join(QUANTIZATIONS)}")
        if self.kv_cache_dtype not in (*KV_CACHE_DTYPES, *KV_CACHE_DTYPE_ALIASES):
            raise ConfigError(f"--kv-cache-dtype {self.kv_cache_dtype}: choose one of {', '.join(KV_CACHE_DTYPES)}")
        if self.device not in DEVICES:
            raise ConfigError(f"--device {self.device}: choose one of {', '.join(DEVICES)}")
        if self.scheduling_policy not in SCHEDULING_POLICIES:
            choices = ", ".join(SCHEDULING_POLICIES)
            raise ConfigError(f"--scheduling-policy {self.scheduling_policy}: choose one of {choices}")
        if self.speculative not in SPECULATIVE_METHODS:
            raise ConfigError(f"--speculative {self.speculative}: choose one of {', '.join(SPECULATIVE_METHODS)}")
        if self.speculative != "none" and self.async_scheduling:
            raise ConfigError(
                f"--speculative {self.speculative}: what a step guesses follows from what the step before drew, "
                "which --async-scheduling does not wait for; choose one of them"
            )
        if self.block_size not in (8, 16, 32, 64, 128):
            raise ConfigError(f"--block-size {self.block_size}: choose 8, 16, 32, 64 or 128 tokens")
        positive = {
            "--max-model-len": self.max_model_len,
            "--max-num-seqs": self.max_num_seqs,
            "--max-num-batched-tokens": self.max_num_batched_tokens,
            "--kv-cache-memory-bytes": self.kv_cache_memory_bytes,
            "--num-gpu-blocks-override": self.num_gpu_blocks_override,
            "--threads": self.threads,
            "--audit-interval": self.audit_interval,
            "--long-prefill-token-threshold": self.long_prefill_token_threshold,
            "--max-queued-requests": self.max_queued_requests,
            "--max-queued-tokens": self.max_queued_tokens,
            "--num-speculative-tokens": self.num_speculative_tokens,
            "--max-lora-rank": self.max_lora_rank,
        }
        for flag, value in positive.items():
            if value is not None and value < 1:
                raise ConfigError(f"{flag} {value}: must be at least 1")
        for flag, value, most in (
            ("--max-num-seqs", self.max_num_seqs, MAX_NUM_SEQS),
            ("--threads", self.threads, MAX_THREADS),
            ("--max-lora-rank", self.max_lora_rank, MAX_LORA_RANK),
            ("--num-speculative-tokens", self.num_speculative_tokens, MAX_SPECULATIVE_TOKENS),
        ):
            if value is not None and value > most:
                raise ConfigError(f"{flag} {value}: must be at most {most}")
        for flag, count in (("--watermark-tokens", self.watermark_tokens), ("--max-overtakes", self.max_overtakes)):
            if count < 0:
                raise ConfigError(f"{flag} {count}: must not be negative")
        integers = {**positive, "--watermark-tokens": self.watermark_tokens, "--max-overtakes": self.max_overtakes}
        for flag, value in {**integers, "--seed": self.seed, "--swap-space": self.swap_space_bytes}.items():
            if value is not None and abs(value) > MAX_INTEGER:
                raise ConfigError(f"{flag} {value}: must not have more than 63 bits")
        if self.queue_timeout is not None and not 0.0 < self.queue_timeout < math.inf:
            raise ConfigError(f"--queue-timeout {self.queue_timeout}: must be a number of seconds above 0")
        if not 0.0 < self.priority_aging < math.inf:
            raise ConfigError(f"--priority-aging {self.priority_aging}: must be a number of seconds above 0")
        if not all(0.0 < weight < math.inf for weight in self.tenant_weights.values()):
            raise ConfigError("--tenant-weights: every weight must be above 0")
        if self.swap_space_bytes < 0:
            raise ConfigError(f"--swap-space {self.swap_space_bytes}: must not be negative")
        if self.gpu_memory_utilization is not None and not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(f"--gpu-memory-utilization {self.gpu_memory_utilization}: must be above 0 and at most 1")
