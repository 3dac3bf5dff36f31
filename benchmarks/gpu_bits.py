"""Whether a whole model in deterministic mode gives a sequence the same bits of logits whatever runs beside it.

A model of random weights over its own pages, step by step without the engine's runner: every prompt alone, all in one
step, each in two chunks; then a decode of each, alone and with the others.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.gpu_model import BLOCK_SIZE, Sequences, llama_spec, random_model
from engine.input_batch import InputBatch, StepTensors
from engine.page_plan import PagePlan
from engine.paged_model import PagedModel
from kernels.attention import AttentionMetadata
from kernels.gpu.backend import TritonBackend
from models.spec import ModelSpec
from scheduler.batch import ScheduledBatch

PROMPTS = (1, 20, 61)  # tokens
CUT = 2  # of a prompt's tokens, one in so many is in the first chunk
ROOM = max(PROMPTS) + 1
NEXT = 5  # the token that every sequence decodes


def full_spec() -> ModelSpec:
    """Two layers, narrow and wide products among them."""
    return llama_spec(2, hidden_size=1024, intermediate_size=9216, heads=(8, 2), head_dim=128, vocab=20_000)


class Steps:
    """Steps of sequences of ``lengths`` over pages of their own."""

    def __init__(self, spec: ModelSpec, model: PagedModel, plan: PagePlan, lengths: list[int], num_pages: int) -> None:
        self._model = model
        self._inputs = InputBatch(plan.groups, BLOCK_SIZE, len(lengths), spec.max_position, torch.device("cpu"))
        pages_per_block = plan.groups[0].pages_per_block
        self.sequences = Sequences(lengths, ROOM, num_pages, pages_per_block)

    def logits(self, batch: ScheduledBatch, device: torch.device) -> torch.Tensor:
        """Of every sequence's last token."""
        step = _on(self._inputs.prepare(batch), device)
        return self._model.logits(self._model.hidden(step).rows(step.logits_rows))


def bits_of_models(device: torch.device, spec: ModelSpec, dtype: torch.dtype) -> dict[str, bool]:
    """By name, whether bits were equal."""
    backend = TritonBackend(is_deterministic=True)
    model = random_model(spec, backend, dtype, device)
    plan = PagePlan.of(spec, BLOCK_SIZE, dtype)
    num_pages = plan.groups[0].pages_per_block * len(PROMPTS) * -(-ROOM // BLOCK_SIZE)
    prompts = [[(7 * length + place) % spec.vocab_size for place in range(length)] for length in PROMPTS]

    def steps(lengths: list[int]) -> Steps:
        paged = PagedModel(model, plan.allocate(num_pages, device))
        return Steps(spec, paged, plan, lengths, num_pages)

    alone, decoded_alone, chunked = [], [], []
    for prompt in prompts:
        one = steps([len(prompt)])
        alone.append(one.logits(one.sequences.prompts([prompt]), device))
        decoded_alone.append(one.logits(one.sequences.decodes(1, [NEXT]), device))
        first = len(prompt) // CUT
        if first:
            two = steps([first])
            two.logits(two.sequences.prompts([prompt[:first]]), device)
            chunked.append(two.logits(two.sequences.rest([prompt[first:]]), device))
    batch = steps(list(PROMPTS))
    together = batch.logits(batch.sequences.prompts(prompts), device)
    decoded = batch.logits(batch.sequences.decodes(1, [NEXT] * len(prompts)), device)
    name = str(dtype).removeprefix("torch.")
    return {
        f"a {name} model's prompts alone and together": torch.equal(torch.cat(alone), together),
        f"a {name} model's prompts whole and in two chunks": torch.equal(torch.cat(alone[1:]), torch.cat(chunked)),
        f"a {name} model's decodes alone and together": torch.equal(torch.cat(decoded_alone), decoded),
    }


def _on(step: StepTensors, device: torch.device) -> StepTensors:
    metadata = tuple(tuple(_moved(column, device) for column in group) for group in step.metadata)
    return StepTensors(step.token_ids.to(device), step.positions.to(device), step.logits_rows.to(device), metadata)


def _moved(metadata: AttentionMetadata, device: torch.device) -> AttentionMetadata:
    return replace(
        metadata,
        query_start_loc=metadata.query_start_loc.to(device),
        seq_lens=metadata.seq_lens.to(device),
        block_table=metadata.block_table.to(device),
        slot_mapping=metadata.slot_mapping.to(device),
    )
