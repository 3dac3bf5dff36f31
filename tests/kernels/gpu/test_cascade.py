from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from kernels.attention import SharedPrefix
from kernels.gpu.backend import TritonBackend
from kernels.gpu.splits import SplitPlan, num_multiprocessors


def shared_prefix(batch: Any, groups: list[tuple[list[int], int]], **bounds: int) -> SharedPrefix:
    device = batch.query.device
    lens = torch.zeros(batch.metadata.seq_lens.shape[0], dtype=torch.int32)
    starts = [0]
    for members, tokens in groups:
        lens[members] = tokens
        starts.append(starts[-1] + len(members))
    return SharedPrefix(
        members=torch.tensor([member for members, _ in groups for member in members], dtype=torch.int32, device=device),
        group_starts=torch.tensor(starts, dtype=torch.int32, device=device),
        prefix_lens=lens.to(device),
        largest_group=max(len(members) for members, _ in groups),
        max_prefix_len=max(tokens for _, tokens in groups),
        max_own_len=bounds.get("max_own_len", int((batch.metadata.seq_lens.cpu() - lens).max())),
    )


def attend(batch: Any, prefix: SharedPrefix | None, **options: Any) -> torch.Tensor:
    metadata = replace(batch.metadata, shared_prefix=prefix)
    return TritonBackend().attend(batch.query, batch.pages, metadata, scale=batch.scale, **options)


def test_groups_larger_than_a_program_takes_are_served_by_several(make_batch: Callable) -> None:
    """A program takes 16 members at 4 query heads to a KV head; here are 18, in another order than the batch's."""
    members = list(range(17, -1, -1))
    batch = make_batch([17 + row for row in range(18)], shared=[(members, 1)])
    batch.check(attend(batch, shared_prefix(batch, [(members, 16)])))


def test_long_prefixes_are_split(make_batch: Callable, device: torch.device) -> None:
    sms = num_multiprocessors(device)
    shape = {"num_seqs": 1, "num_kv_heads": 1, "max_seq_len": 192, "window": None, "tile_keys": 16}
    assert SplitPlan.balanced(num_sms=sms, **shape).num_splits == 3
    batch = make_batch([195, 193, 200], block_size=64, shared=[((0, 1, 2), 3)])
    batch.check(attend(batch, shared_prefix(batch, [([0, 1, 2], 192)])))


def test_a_plan_serves_while_its_sequences_grow(make_batch: Callable) -> None:
    batch = make_batch([40, 300], shared=[((0, 1), 2)])
    batch.check(attend(batch, shared_prefix(batch, [([0, 1], 32)], max_own_len=1)))


def test_a_prefix_may_end_inside_a_tile_and_with_the_sequence_but_one(make_batch: Callable) -> None:
    batch = make_batch([49, 50, 49], shared=[((0, 1, 2), 3)])
    batch.check(attend(batch, shared_prefix(batch, [([0, 1, 2], 48)])))


def test_decodes_share_beside_a_chunk_of_a_prompt(make_batch: Callable) -> None:
    batch = make_batch([40, 20, 37], [1, 5, 1], shared=[((0, 2), 2)])
    batch.check(attend(batch, shared_prefix(batch, [([0, 2], 32)])))


def test_layers_with_a_window_do_not_share(make_batch: Callable) -> None:
    """The prefix begins before the window, in pages that hold NaN."""
    batch = make_batch([70, 70], window=20, shared=[((0, 1), 3)])
    prefix = shared_prefix(batch, [([0, 1], 48)])
    batch.check(attend(batch, prefix, window=20))


def test_the_common_pages_are_read_through_one_table_only(make_batch: Callable) -> None:
    """The others' entries may even be wrong: nobody looks them up."""
    batch = make_batch([40, 40, 36], shared=[((0, 1, 2), 2)])
    expected = batch.expected()
    batch.metadata.block_table[1:, :2] = 0
    output = attend(batch, shared_prefix(batch, [([0, 1, 2], 32)]))
    torch.testing.assert_close(output.cpu().double(), expected, rtol=0, atol=5e-6)
