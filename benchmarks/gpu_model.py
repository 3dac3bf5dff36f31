"""A whole model on a GPU, by the engine's own runner: milliseconds of a decode step against its floor, and answers.

The model has the shape of Llama 3.1 8B and random weights, so that no checkpoint is needed; the start is the engine's:
run the largest step, cut pages from what it leaves, record graphs. Steps are launched one ahead. A step's floor is the
time to read all weights but the embedding, and every sequence's keys and values, at the bandwidth measured beside it.

Takes settings without `engine.config`, which needs packages that a machine with a GPU need not have.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import torch

from block_manager.block_table import NO_CHANGE, ChangedBlocks
from engine.device_runner import DeviceRunner
from engine.device_setup import DeviceSetup
from engine.errors import ConfigError
from engine.input_batch import InputBatch
from engine.memory_budget import MemoryReader
from engine.page_plan import PagePlan
from engine.page_pool import PagePool
from engine.paged_model import PagedModel
from engine.step_buffers import StepShape
from kernels.attention import AttentionBackend
from kernels.cpu.backend import TorchBackend
from kernels.gpu.backend import TritonBackend
from kernels.roofline import AttentionShape
from models.decoder import Decoder
from models.model import CausalLM
from models.spec import LayerSpec, ModelSpec, RopeSpec
from scheduler.batch import PLACEHOLDER, ScheduledBatch, ScheduledRequest

if TYPE_CHECKING:
    from engine.choices import Choices
    from engine.config import EngineConfig
    from engine.sampling_params import SamplingParams

TARGET = 1.25  # times the floor, with graphs
WARM_STEPS = 5
BLOCK_SIZE = 16
PROMPTS = (1, 20, 33)  # tokens
ANSWER = 6


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a device's setup reads of ``EngineConfig`` and ``Choices``."""

    device: torch.device
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float | None = 0.9
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    enforce_eager: bool = False
    deterministic: bool = False
    async_scheduling: bool = True
    block_size: int = BLOCK_SIZE
    enable_prefix_caching: bool = False
    swap_space_bytes: int = 0
    has_own_memory: bool = True


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """How every token is drawn."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    rank: bool = False
    logprobs: int | None = None
    tells_logprobs: bool = False


MakeSetup = Callable[[Settings, PagePlan], DeviceSetup]


def gpu_setup(settings: Settings, plan: PagePlan) -> DeviceSetup:
    """The setup of an engine on a GPU."""
    return DeviceSetup.of_gpu(cast("EngineConfig", settings), cast("Choices", settings), plan)


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """What is measured: ``steps`` timed decodes of each of ``batches`` sequences, from ``context`` tokens on."""

    spec: ModelSpec
    dtype: torch.dtype
    batches: tuple[int, ...]
    context: int
    steps: int
    settings: Settings


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """Milliseconds of a decode step, and the fewest it can take; None where ``note`` says why there are none."""

    batch: int
    context: int
    has_graphs: bool
    milliseconds: float | None
    floor: float
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return None if self.milliseconds is None else self.milliseconds / self.floor


@dataclass(frozen=True, kw_only=True)
class ModelReport:
    """All of it. ``memory_share`` of the device is what the start and the largest step took; see ``asked_share``.

    None where the start failed, or the model could not use all its memory.
    """

    shape: str
    rows: list[StepRow] = field(default_factory=list)
    num_pages: int = 0
    start_seconds: float = 0.0
    asked_share: float = 0.0
    memory_share: float | None = None
    failures: list[str] = field(default_factory=list)

    @property
    def keeps_to_its_share(self) -> bool:
        """Whether memory was honoured within 2 %."""
        return self.memory_share is None or abs(self.memory_share - self.asked_share) <= 0.02


def llama_8b(num_layers: int = 32) -> ModelSpec:
    """Llama 3.1 8B, or fewer of its layers."""
    return llama_spec(num_layers, hidden_size=4096, intermediate_size=14336, heads=(32, 8), head_dim=128, vocab=128_256)


def llama_spec(
    num_layers: int, *, hidden_size: int, intermediate_size: int, heads: tuple[int, int], head_dim: int, vocab: int
) -> ModelSpec:
    return ModelSpec(
        architecture="llama",
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_q_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=head_dim,
        vocab_size=vocab,
        max_position=131_072,
        norm_eps=1e-5,
        layers=(LayerSpec(None, RopeSpec(500_000.0)),) * num_layers,
        attention_scale=head_dim**-0.5,
        tied_embeddings=False,
        activation="silu",
    )


def full_sizes(free_bytes: int, device: torch.device) -> ModelSizes:
    """As many layers of an 8B model as half of the memory holds."""
    one, none = (_read_bytes(llama_8b(count), 2) for count in (1, 0))
    layers = min(32, int((free_bytes / 2 - 2 * none) // (one - none)))
    settings = Settings(device=device, max_model_len=8192, max_num_seqs=256, max_num_batched_tokens=8192)
    return ModelSizes(
        spec=llama_8b(max(layers, 1)),
        dtype=torch.bfloat16,
        batches=(1, 32, 256),
        context=1024,
        steps=40,
        settings=settings,
    )


def random_model(spec: ModelSpec, backend: AttentionBackend, dtype: torch.dtype, device: torch.device) -> CausalLM:
    """Weights that keep hidden states near 1; norms of ones."""
    model = Decoder(spec, backend, dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(0)
    for parameter in model.parameters().values():
        weight = parameter.view
        if weight.dim() == 1:
            weight.fill_(1.0)
        else:
            weight.normal_(std=weight.shape[1] ** -0.5, generator=generator)
    return model


def floor_seconds(spec: ModelSpec, itemsize: int, seq_lens: Sequence[int], bandwidth: float) -> float:
    """The time to read weights and pages once."""
    shape = AttentionShape(spec.num_q_heads, spec.num_kv_heads, spec.head_dim, itemsize, itemsize)
    pages = sum(seq_lens) * shape.stored_bytes * spec.num_layers
    return (_read_bytes(spec, itemsize) + pages) / bandwidth


def _read_bytes(spec: ModelSpec, itemsize: int) -> int:
    """Weights of all products: of embeddings a step reads but its tokens' rows."""
    heads = (2 * spec.num_q_heads + 2 * spec.num_kv_heads) * spec.head_dim
    layer = spec.hidden_size * (heads + 3 * spec.intermediate_size)
    return itemsize * (spec.num_layers * layer + spec.hidden_size * spec.vocab_size)


class Sequences:
    """Sequences of known lengths that each get pages of their own, for ``room`` tokens, in random order."""

    def __init__(self, lengths: Sequence[int], room: int, num_pages: int, pages_per_block: int = 1) -> None:
        """ConfigError where they need more than ``num_pages``."""
        blocks = -(-room // BLOCK_SIZE)
        needed = len(lengths) * blocks * pages_per_block
        if needed > num_pages:
            raise ConfigError(f"needs {needed} pages, of {num_pages}")
        order = (1 + torch.randperm(num_pages, generator=torch.Generator().manual_seed(0))[:needed]).tolist()
        pages = [tuple(order[at : at + pages_per_block]) for at in range(0, needed, pages_per_block)]
        self.names = tuple(f"{len(lengths)}-{number}" for number in range(len(lengths)))
        self._lengths = list(lengths)
        self._blocks = [ChangedBlocks(0, (pages[at : at + blocks],)) for at in range(0, len(pages), blocks)]

    def prompts(self, tokens: Iterable[list[int]], released: tuple[str, ...] = ()) -> ScheduledBatch:
        """The step that computes ``tokens``, the last of each sequence's length."""
        shares = [
            _share(name, new, length - len(new), blocks, 0)
            for name, new, length, blocks in zip(self.names, tokens, self._lengths, self._blocks, strict=True)
        ]
        return ScheduledBatch(tuple(shares), released)

    def rest(self, tokens: Iterable[list[int]]) -> ScheduledBatch:
        """The step that computes ``tokens`` after `prompts`, as a second chunk does."""
        return ScheduledBatch(
            tuple(
                _share(name, new, length, NO_CHANGE, 0)
                for name, new, length in zip(self.names, tokens, self._lengths, strict=True)
            )
        )

    def decodes(self, number: int, tokens: Sequence[int] | None = None) -> ScheduledBatch:
        """Decode step ``number``, from 1; without ``tokens``, of what the step before it draws."""
        return ScheduledBatch(
            tuple(
                _share(name, [token], length + number - 1, NO_CHANGE, number)
                for name, length, token in zip(
                    self.names, self._lengths, tokens or itertools.repeat(PLACEHOLDER), strict=False
                )
            )
        )


def _share(name: str, tokens: list[int], computed: int, blocks: ChangedBlocks, index: int) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=name,
        turn=0,
        token_ids=tokens,
        num_computed_tokens=computed,
        samples=True,
        admitted=bool(blocks.pages),
        sequence_ids=(name,),
        output_index=index,
        new_blocks=blocks,
    )


def launch_ahead(runner: DeviceRunner, batches: Iterable[ScheduledBatch]) -> Iterator[dict[str, int]]:
    """The tokens of each step, read when the next one has been launched."""
    last = None
    for batch in batches:
        params = {request.request_id: cast("SamplingParams", Greedy()) for request in batch.requests}
        step = runner.launch(batch, params)
        if last is not None:
            yield {name: drawn.token_id for name, drawn in last.tokens().items()}
        last = step
    if last is not None:
        yield {name: drawn.token_id for name, drawn in last.tokens().items()}


def measure(
    sizes: ModelSizes, bandwidth: float, memory: MemoryReader, make_setup: MakeSetup = gpu_setup
) -> ModelReport:
    """Start as an engine does, and time steps with graphs and without. What fails is said in the report."""
    spec, settings = sizes.spec, sizes.settings
    shape = f"{spec.num_layers} layers of {spec.hidden_size}, {str(sizes.dtype).removeprefix('torch.')}"
    report = ModelReport(shape=shape, asked_share=settings.gpu_memory_utilization or 0.0)
    try:
        model = random_model(spec, TritonBackend(), sizes.dtype, settings.device)
        plan = PagePlan.of(spec, settings.block_size, sizes.dtype)
        started = time.perf_counter()
        setup = make_setup(settings, plan)
        budget = setup.measure(model)
        pool = PagePool.cut(cast("EngineConfig", settings), cast("Choices", settings), plan, budget)
        runner, warnings = setup.make_runner(model, pool)
        report = replace(report, num_pages=pool.num_pages, start_seconds=time.perf_counter() - started)
        report.failures.extend(warnings)
        if pool.num_pages < plan.most_pages(cast("EngineConfig", settings), settings.max_model_len):
            report = replace(report, memory_share=_share_taken(memory, runner, setup.largest))
        for pages in pool.kv_cache.tensors():
            pages.normal_()
        released: tuple[str, ...] = ()
        for has_graphs in (True, False):
            if not has_graphs:
                runner, _ = make_setup(replace(settings, enforce_eager=True), plan).make_runner(model, pool)
                released = ()
            for batch in sizes.batches:
                row, released = _step_row(sizes, runner, batch, has_graphs, plan, pool.num_pages, bandwidth, released)
                report.rows.append(row)
    except (RuntimeError, ConfigError) as error:
        report.failures.append(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    return report


def _share_taken(memory: MemoryReader, runner: DeviceRunner, largest: StepShape) -> float:
    """Of the device's memory, by all that is there once the largest step has run."""
    in_use = memory.in_use()
    return (in_use + memory.peak_of(lambda: runner.run_null(largest))) / memory.total()


def _step_row(
    sizes: ModelSizes,
    runner: DeviceRunner,
    batch: int,
    has_graphs: bool,
    plan: PagePlan,
    num_pages: int,
    bandwidth: float,
    released: tuple[str, ...],
) -> tuple[StepRow, tuple[str, ...]]:
    """The row of one batch size, and the sequences that have rows of the block tables now."""
    num_steps = WARM_STEPS + sizes.steps
    middle = sizes.context + WARM_STEPS + sizes.steps // 2
    row = StepRow(
        batch=batch,
        context=sizes.context,
        has_graphs=has_graphs,
        milliseconds=None,
        floor=1e3 * floor_seconds(sizes.spec, sizes.dtype.itemsize, [middle] * batch, bandwidth),
    )
    try:
        pages_per_block = plan.groups[0].pages_per_block
        sequences = Sequences([sizes.context] * batch, sizes.context + num_steps + 1, num_pages, pages_per_block)
    except ConfigError as error:
        return replace(row, note=str(error)), released
    first = sequences.prompts([[1]] * batch, released)
    batches = itertools.chain([first], (sequences.decodes(number) for number in range(1, num_steps + 1)))
    ends = []
    for _ in launch_ahead(runner, batches):
        ends.append(time.perf_counter())
    seconds = (ends[-1] - ends[-1 - sizes.steps]) / sizes.steps
    return replace(row, milliseconds=1e3 * seconds), sequences.names


def answers(device: torch.device, make_setup: MakeSetup = gpu_setup) -> dict[str, bool]:
    """Whether a small float32 model on the device draws what it draws on the CPU by torch's own operations."""
    spec = llama_spec(2, hidden_size=128, intermediate_size=192, heads=(4, 2), head_dim=64, vocab=300)
    settings = Settings(
        device=device, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=64, num_gpu_blocks_override=16
    )
    plan = PagePlan.of(spec, BLOCK_SIZE, torch.float32)
    host = random_model(spec, TorchBackend(), torch.float32, torch.device("cpu"))
    model = random_model(spec, TritonBackend(), torch.float32, device)
    for name, parameter in model.parameters().items():
        parameter.view.copy_(host.parameters()[name].view)
    prompts = [[(7 * length + place) % 300 for place in range(length)] for length in PROMPTS]
    sequences = Sequences(PROMPTS, max(PROMPTS) + ANSWER, 16)
    expected = _host_answers(host, plan, settings, sequences, prompts)
    found = {}
    for name, enforce_eager in (("with graphs", False), ("without", True)):
        chosen = replace(settings, enforce_eager=enforce_eager)
        pool = PagePool.cut(cast("EngineConfig", chosen), cast("Choices", chosen), plan, None)
        runner, warnings = make_setup(chosen, plan).make_runner(model, pool)
        batches = [sequences.prompts(prompts), *(sequences.decodes(number) for number in range(1, ANSWER))]
        found[f"a model's tokens {name} and on the CPU"] = not warnings and expected == list(
            launch_ahead(runner, batches)
        )
    return found


def _host_answers(
    model: CausalLM, plan: PagePlan, settings: Settings, sequences: Sequences, prompts: list[list[int]]
) -> list[dict[str, int]]:
    device = torch.device("cpu")
    inputs = InputBatch(plan.groups, BLOCK_SIZE, settings.max_num_seqs, settings.max_model_len, device)
    paged = PagedModel(model, plan.allocate(16, device))
    batch, steps = sequences.prompts(prompts), []
    for number in range(1, ANSWER + 1):
        step = inputs.prepare(batch)
        tokens = paged.logits(paged.hidden(step).rows(step.logits_rows)).argmax(dim=-1).tolist()
        steps.append(dict(zip(sequences.names, tokens, strict=True)))
        batch = sequences.decodes(number, tokens)
    return steps
