"""Paged attention as the models see it: one metadata record, one backend interface, one choice.

Knows tensors and pages only: nothing of requests, models or who owns a page.

Layouts, used by every backend:

    query            [num_tokens, num_q_heads, head_dim]
    key, value       [num_tokens, num_kv_heads, head_dim]
    key_pages,
    value_pages      [num_pages, num_kv_heads, block_size, head_dim]   (heads first)
    key_scales,
    value_scales     float32 [num_pages, num_kv_heads, block_size], for quantised pages (``kernels.quantisation``)
    slot             page * block_size + offset, with page = block_table[sequence, position // block_size]

The tokens of one step are ragged: sequence ``s`` owns the query rows ``query_start_loc[s] : query_start_loc[s + 1]``,
and they are the last rows of its ``seq_lens[s]`` tokens. A decode is a sequence with one row, a prefill chunk one
with more; no backend needs to be told which is which. Block tables are indexed by absolute position, whatever the
window: entries for pages that slid out of a window are stale or 0, the null page, and must never be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from kernels.products import DenseProduct, ExpertProduct, WeightKernels

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Groups of decoding sequences whose block tables begin with the same pages, so that these may be read once.

    Shapes: ``members`` int32 [num_members], rows of the batch, group after group; ``group_starts`` int32
    [num_groups + 1], where in ``members`` each begins; ``prefix_lens`` int32 [num_seqs], tokens that a sequence shares
    with its group, 0 in no group, less than its length. Plain ints bound them: members of a group, tokens of a prefix,
    tokens of a sequence after its prefix when the plan was made. Says nothing that the block tables do not say: a
    backend may ignore it.
    """

    members: torch.Tensor
    group_starts: torch.Tensor
    prefix_lens: torch.Tensor
    largest_group: int
    max_prefix_len: int
    max_own_len: int


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Ragged layout of one step for the layers that share one block table.

    Shapes: ``query_start_loc`` int32 [num_seqs + 1]; ``seq_lens`` int32 [num_seqs], in tokens, this step's included;
    ``block_table`` int32 [num_seqs, max_blocks]; ``slot_mapping`` int64 [num_tokens], where each new token's key and
    value go. ``max_query_len`` and ``max_seq_len`` are plain ints, so that no backend waits for the device to learn
    them.

    Batches for GPUs may be padded with sequences of one row and a length of 0: these attend to nothing, and get zeros.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    max_query_len: int
    max_seq_len: int
    shared_prefix: SharedPrefix | None = None


@dataclass(frozen=True, slots=True)
class LastRows:
    """The tokens of a step whose final states are wanted: of every sequence its last ones, or none.

    ``rows`` int64 [num_rows], ascending, of the step's tokens; ``query_start_loc`` int32 [num_seqs + 1] and
    ``max_query_len`` lay out these rows alone.
    """

    rows: torch.Tensor
    query_start_loc: torch.Tensor
    max_query_len: int

    def layout(self, metadata: AttentionMetadata) -> AttentionMetadata:
        """``metadata`` for queries of these rows only; new keys and values are not theirs to store."""
        return replace(
            metadata,
            query_start_loc=self.query_start_loc,
            max_query_len=self.max_query_len,
            shared_prefix=None,
        )


@dataclass(frozen=True, slots=True)
class KVPages:
    """One layer's part of all pages: keys, values and, where these are quantised, their scales. Shapes: see above."""

    key: torch.Tensor
    value: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Preparation:
    """What happens to the heads of queries and keys between their projection and attention: RMSNorm, then rotary.

    Each is left out if it is None. ``query_norm`` and ``key_norm`` are weights [head_dim], the same for every head
    (those that a checkpoint stores less one, as Gemma's, come with the one added). ``rotation`` is cosines and sines,
    float32 [num_tokens, ..., pairs], that turn element i with element i + pairs. There are head_dim / 2 pairs or fewer:
    elements from 2 * pairs on are normed only.
    """

    query_norm: torch.Tensor | None = None
    key_norm: torch.Tensor | None = None
    eps: float = 1e-6
    rotation: tuple[torch.Tensor, torch.Tensor] | None = None


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """What one layer's attention needs in a step: its own pages and the layout of the tokens."""

    pages: KVPages
    metadata: AttentionMetadata


# Computes hidden states in place of those it is given, over layers whose rotations and pages are given in their order.
ComputeLayers = Callable[
    ["torch.Tensor", Sequence[tuple["torch.Tensor", "torch.Tensor"]], Sequence[PagedLayer]], "torch.Tensor"
]


class LayerReplay(Protocol):
    """Repeats what a stack of layers did for as many tokens before, without going through its code again."""

    def __call__(
        self,
        compute: ComputeLayers,
        x: torch.Tensor,
        rotations: Sequence[tuple[torch.Tensor, torch.Tensor]],
        layers: Sequence[PagedLayer],
    ) -> torch.Tensor:
        """``compute(x, rotations, layers)``, or the same by other means."""


class AttentionBackend(Protocol):
    """Stores new keys and values into pages, attends over pages, and computes the small steps between products."""

    name: str

    @property
    def dense_product(self) -> DenseProduct | None:
        """The product of float weights; None where torch's own will do, or any form of a weight that is faster."""

    @property
    def expert_product(self) -> ExpertProduct | None:
        """The product of experts with float weights; None where each expert is better multiplied by itself."""

    @property
    def min_rows(self) -> int:
        """Rows that a product needs at least for each to have the same bits in any number of them; 1: nobody asks."""

    @property
    def layer_replay(self) -> LayerReplay | None:
        """For small steps; None where layers are always computed by their code."""

    @property
    def weight_kernels(self) -> WeightKernels[Any] | None:
        """What multiplies weights that are kept in quantised form; None where nothing does."""

    def store_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        pages: KVPages,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write each token's key and value into its slot, rounded or quantised; a slot of -1 is skipped."""

    def prepare_and_store(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        pages: KVPages,
        slot_mapping: torch.Tensor,
        preparation: Preparation,
    ) -> None:
        """Norm and rotate ``query``, in place, and ``key``, then store as `store_kv` does. Rounds once, at the end."""

    def rotation(self, positions: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of the angles ``positions * frequencies``, int64 and float32, in new memory."""

    def normed(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """The RMSNorm of ``x`` [num_tokens, hidden_size] by a float32 ``weight``, in float32 and rounded once."""

    def normed_sum(
        self, x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``x + branch``, both [num_tokens, hidden_size], normed as `normed` does, and that sum, rounded first."""

    def gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        """The halves of ``gate_up`` [num_tokens, 2 * size] as a gated MLP combines them.

        ``activation(gate) * up`` with "silu", "gelu" (by the error function) or "gelu_tanh" (its approximation). And
        "swiglu_oai" (gpt-oss): ``(up + 1) * gate * sigmoid(1.702 * gate)`` of a gate of at most 7 and an up of -7 to 7.
        """

    def add(self, x: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        """``x + branch``, both [num_tokens, hidden_size]; ``x`` itself may be overwritten."""

    def add_normed(self, x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """``x`` plus the RMSNorm of ``branch``, both [num_tokens, hidden_size]; ``x`` itself may be overwritten."""

    def attend(
        self,
        query: torch.Tensor,
        pages: KVPages,
        metadata: AttentionMetadata,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Causal attention of every query row over its sequence's pages; returns the shape and dtype of ``query``.

        Row at position ``p`` sees positions ``max(0, p - window + 1) .. p``. ``softcap`` c turns a score x into
        ``c * tanh(x / c)`` (Gemma 2). ``sinks`` [num_q_heads] adds one more score to each head's softmax, neither
        scaled nor capped, that takes its weight from the others and gives no value (gpt-oss). Scores and sums are
        accumulated in float32.
        """
