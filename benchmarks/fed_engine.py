"""An engine's process without a model: it waits for so many streams and then feeds all of them, step by step.

    python -m benchmarks.fed_engine FD      FD is its end of a socket pair; the first frame is the EngineConfig

Speaks the protocol of `engine.process`. Invariants: each step is one message with one token for every stream; a stream
gets the tokens of the middle of its prompt, over and over; steps do not wait for whoever reads them.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import time
from collections.abc import Iterator

from engine.channel import Channel, ChannelClosed
from engine.histogram import Histogram
from engine.messages import (
    AbortRequests,
    EngineReady,
    EngineRequest,
    EngineStats,
    GroupUsage,
    Ledger,
    ReadStats,
    RequestDelta,
    Shutdown,
    StatsRead,
    StepOutput,
)
from scheduler.request import FinishReason

STREAMS_VARIABLE = "OCTAVO_FED_STREAMS"
INTERVAL_VARIABLE = "OCTAVO_FED_INTERVAL"
CONTEXT = 8_192
VOCAB_SIZE = 262_144
NUM_PAGES = 1_000_000
PAGE_BYTES = 49_152
LEDGER = Ledger(
    queue_seconds=0.0,
    prefill_seconds=0.0,
    decode_seconds=0.0,
    peak_pages=1,
    page_seconds=0.0,
    cached_tokens=0,
    recomputed_tokens=0,
    rotations=0,
    draft_tokens=0,
    accepted_draft_tokens=0,
    preemptions=[],
)
TEMPLATE_TOKENS = 8  # at both ends of a prompt: BOS and what a chat template adds, which may be stop strings


def _stats() -> EngineStats:
    group = GroupUsage(name="full", cached=0, held=0, bytes_held=0, shared=0, evicted=0, held_slots=0, wasted_slots=0)
    counts = dict.fromkeys(EngineStats.__struct_fields__, 0)
    lists: dict[str, object] = {
        "groups": [group],
        "preemptions": [],
        "waiting_by_reason": {},
        "refusals": {},
        "missed_prompt_tokens": {},
    }
    none = Histogram.empty(())
    steps = {"step_part_seconds": {}, "step_durations": none, "step_tokens": none, "step_sequences": none}
    lists |= {"tenant_page_seconds": {}, **steps}
    return EngineStats(**{**counts, "pages_total": NUM_PAGES, "pages_free": NUM_PAGES, **lists})  # type: ignore[arg-type]


def _ready(num_streams: int) -> EngineReady:
    return EngineReady(
        device="cpu",
        dtype="float32",
        kv_dtype="float32",
        threads=1,
        attention_backend="none",
        weight_form="none",
        weight_bytes=0,
        kv_bytes=NUM_PAGES * PAGE_BYTES,
        num_pages=NUM_PAGES,
        page_bytes=PAGE_BYTES,
        block_size=16,
        max_model_len=CONTEXT,
        max_num_seqs=num_streams,
        max_num_batched_tokens=CONTEXT,
        num_speculative_tokens=0,
        vocab_size=VOCAB_SIZE,
        hidden_size=640,
        layer_windows=[None],
        eos_token_ids=[1],
        stage_seconds={},
        warnings=[],
        stats=_stats(),
    )


class FedEngine:
    """Serves ``num_streams`` requests at once, a token each every ``interval`` seconds."""

    def __init__(self, channel: Channel, num_streams: int, interval: float) -> None:
        self._channel = channel
        self._num_streams = num_streams
        self._interval = interval
        self._streams: dict[str, tuple[Iterator[int], int]] = {}
        self._steps = 0

    def run(self) -> None:
        """Until told to stop."""
        self._channel.receive_config()
        self._channel.send(_ready(self._num_streams))
        while True:
            feeding = self._steps > 0 or len(self._streams) >= self._num_streams
            started = time.monotonic()
            for message in self._channel.receive(0.0 if feeding else None):
                if isinstance(message, EngineRequest):
                    tokens = itertools.cycle(message.prompt_token_ids[TEMPLATE_TOKENS:-TEMPLATE_TOKENS])
                    self._streams[message.request_id] = (tokens, message.sampling.max_tokens)
                elif isinstance(message, AbortRequests):
                    for name in message.request_ids:
                        self._streams.pop(name, None)
                elif isinstance(message, ReadStats):
                    self._channel.send(StatsRead(query_id=message.query_id, stats=_stats()))
                elif isinstance(message, Shutdown):
                    return
            if feeding:
                self._step()
                time.sleep(max(0.0, started + self._interval - time.monotonic()))

    def _step(self) -> None:
        self._steps += 1
        deltas = []
        for name, (tokens, max_tokens) in list(self._streams.items()):
            finish = FinishReason.LENGTH if self._steps >= max_tokens else None
            ledger = None if finish is None else LEDGER
            deltas.append(RequestDelta(request_id=name, token_ids=[next(tokens)], finish_reason=finish, ledger=ledger))
            if finish is not None:
                del self._streams[name]
        self._channel.send(StepOutput(deltas=deltas))
        if not self._streams:
            self._steps = 0


def main() -> int:
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    try:
        FedEngine(channel, int(os.environ[STREAMS_VARIABLE]), float(os.environ[INTERVAL_VARIABLE])).run()
    except ChannelClosed:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
