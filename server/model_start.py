"""ModelStart: a model on its way from a checkpoint to a ServerState that answers.

The engine's process and the tokenizer load side by side; whoever starts them does something else meanwhile. Knows
nothing of sockets and signals. Invariant: after `close` no process and no thread of it is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from engine.client import EngineClient
from engine.config import Checkpoint, ConfigError, find_adapter, resolve_checkpoint
from engine.engine_process import EngineProcess
from engine.messages import EngineReady
from server.garbage_collection import settle
from server.options import ModelOptions
from server.startup import LoadingBar, announce

if TYPE_CHECKING:
    from server.state import ServerState
    from server.text_parts import TextParts


@dataclass(frozen=True, slots=True)
class FoundModel:
    """The files of a model, those of its adapters by their names, and the seconds it took to find them."""

    checkpoint: Checkpoint
    adapters: Mapping[str, str]
    seconds: float


def find_model(options: ModelOptions) -> FoundModel:
    """What ``options`` name, announced to the user. Raises CheckpointError or ConfigError."""
    start = time.monotonic()
    checkpoint = resolve_checkpoint(options.model, revision=options.revision, offline=options.offline)
    announce(checkpoint)
    adapters = {name: str(find_adapter(path, offline=options.offline)) for name, path in options.lora_modules}
    if (model_name := options.served_model_name or checkpoint.name) in adapters:
        raise ConfigError(f"--lora-modules {model_name}: is the name of the model itself")
    return FoundModel(checkpoint, adapters, time.monotonic() - start)


class ModelStart:
    """Loads what `find_model` has found, from construction on, in the running loop.

    ``process`` is the engine's where it runs already; it becomes the client's.
    """

    def __init__(self, options: ModelOptions, found: FoundModel, process: EngineProcess | None = None) -> None:
        checkpoint = found.checkpoint
        self.name = options.served_model_name or checkpoint.name
        self._options = options
        self._bar = LoadingBar(options.engine.log_format)
        self._seconds = {"checkpoint": found.seconds}
        config = msgspec.structs.replace(options.engine, model=str(checkpoint.path), adapters=dict(found.adapters))
        self.client = EngineClient(config, process=process, on_progress=self._bar.update)
        self._starting = asyncio.create_task(self.client.start())
        self._loading = asyncio.create_task(asyncio.to_thread(_load_text, checkpoint, options.chat_template))

    def state(self) -> ServerState:
        """A state of this model, which says that it is not ready until `finish` has returned."""
        # here and not above: whoever imports the HTTP stack in a thread must not be held up by this module
        from server.auth import AdminKey, ApiKeys
        from server.state import ServerState

        options = self._options
        return ServerState(
            self.client,
            self.name,
            silence_limit=options.silence_limit,
            max_request_bytes=options.max_request_bytes,
            api_keys=ApiKeys(options.api_keys),
            admin_key=AdminKey(options.admin_key),
            scheduling_policy=options.engine.scheduling_policy,
            stream_queue_position=options.stream_queue_position,
            allowed_origins=options.allowed_origins,
            metrics_compat=options.metrics_compat,
            loads_adapters=options.enable_lora,
            tool_call_parser=options.tool_call_parser,
            reasoning_parser=options.reasoning_parser,
            trusts_request_templates=options.trust_request_chat_template,
        )

    async def finish(self, state: ServerState) -> tuple[EngineReady, dict[str, float]]:
        """Wait until the engine serves and ``state`` can read; what was loaded, and seconds of this process's stages.

        Raises EngineStartError, TextError or CheckpointError.
        """
        ready, text = await asyncio.gather(self._starting, self._loading)
        self._bar.close()
        state.tokenizer, state.chat_template = text.tokenizer, text.chat_template
        state.tool_use_template = text.tool_use_template
        settle()
        return ready, {**self._seconds, "tokenizer": text.seconds}

    async def close(self) -> None:
        """Stop what loads, and the engine."""
        self._bar.close()
        for task in (self._starting, self._loading):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        await self.client.close()


def _load_text(checkpoint: Checkpoint, chat_template: str | None) -> TextParts:
    from server.text_parts import load_text_parts

    return load_text_parts(replace(checkpoint), chat_template)  # a copy: the file that it opens goes with it
