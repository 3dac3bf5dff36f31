"""The `octavo` command.

Knows flags and exit statuses; everything heavy is imported by the subcommand that needs it. Statuses: 0 for a server
that was told to stop, 1 for one that could not serve (one sentence on stderr says why), 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from server.flags import API_KEY_VARIABLE, add_engine_flags, add_scheduling_flags, add_server_flags

if TYPE_CHECKING:
    from server.options import ServeOptions


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    began = time.monotonic()
    given = sys.argv[1:] if arguments is None else arguments
    if list(given[:1]) == ["simulate"]:
        _simulate(given[1:])
    parsed = _parser().parse_args(given)
    logging.basicConfig(level=logging.WARNING, format="octavo: %(levelname)s: %(message)s")
    try:
        return _serve(parsed, began)
    except KeyboardInterrupt:
        return 130


def _simulate(arguments: Sequence[str]) -> NoReturn:
    """Become the simulator, which has flags and statuses of its own."""
    root = str(Path(__file__).resolve().parent.parent)
    search_path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", "-m", "scheduler.simulation", *arguments]
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": search_path})


def _serve(parsed: argparse.Namespace, began: float) -> int:
    from engine.client import EngineStartError
    from engine.config import CheckpointError, ConfigError
    from server.listener import ListenError
    from server.serving import serve
    from server.text.errors import TextError

    try:
        options = _options(parsed)
        options.validate()
        return serve(options, began)
    except (ConfigError, ListenError, CheckpointError, TextError, EngineStartError) as error:
        print(f"octavo: {error}", file=sys.stderr, flush=True)
        return 1


def _options(parsed: argparse.Namespace) -> ServeOptions:
    from engine.config import EngineConfig
    from server.options import ServeOptions
    from server.tenant import tenant_name

    engine = EngineConfig(
        model="",
        dtype=parsed.dtype,
        kv_cache_dtype=parsed.kv_cache_dtype,
        quantization=parsed.quantization,
        device=parsed.device,
        max_model_len=parsed.max_model_len,
        max_num_seqs=parsed.max_num_seqs,
        max_num_batched_tokens=parsed.max_num_batched_tokens,
        block_size=parsed.block_size,
        gpu_memory_utilization=parsed.gpu_memory_utilization,
        kv_cache_memory_bytes=parsed.kv_cache_memory_bytes,
        num_gpu_blocks_override=parsed.num_gpu_blocks_override,
        swap_space_bytes=parsed.swap_space,
        audit_interval=parsed.audit_interval,
        enable_prefix_caching=parsed.enable_prefix_caching,
        threads=parsed.threads,
        seed=parsed.seed,
        scheduling_policy=parsed.scheduling_policy,
        priority_aging=parsed.priority_aging,
        tenant_weights={tenant_name(number): weight for number, weight in enumerate(parsed.tenant_weights, 1)},
        long_prefill_token_threshold=parsed.long_prefill_token_threshold,
        max_queued_requests=parsed.max_queued_requests,
        max_queued_tokens=parsed.max_queued_tokens,
        queue_timeout=parsed.queue_timeout,
        watermark_tokens=parsed.watermark_tokens,
        max_overtakes=parsed.max_overtakes,
        async_scheduling=parsed.async_scheduling,
        speculative=parsed.speculative,
        num_speculative_tokens=parsed.num_speculative_tokens,
        enforce_eager=parsed.enforce_eager,
        deterministic=parsed.deterministic,
    )
    return ServeOptions(
        model=parsed.model,
        revision=parsed.revision,
        host=parsed.host,
        port=parsed.port,
        served_model_name=parsed.served_model_name,
        chat_template=parsed.chat_template,
        max_request_bytes=parsed.max_request_bytes,
        shutdown_timeout=parsed.shutdown_timeout,
        silence_limit=parsed.engine_silence_limit,
        stream_queue_position=parsed.stream_queue_position,
        api_keys=(*parsed.api_key, *_keys_of_environment()),
        engine=engine,
    )


def _keys_of_environment() -> list[str]:
    keys = (key.strip() for key in os.environ.get(API_KEY_VARIABLE, "").split(","))
    return [key for key in keys if key]


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows a default where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, [], ()) else super()._get_help_string(action)


class _Version(argparse.Action):
    """--version, which reads the distribution's metadata only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from server.version import octavo_version

        print(f"octavo {octavo_version()}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="octavo", description="Serves language models from paged KV memory.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="serve a model over an OpenAI-style HTTP API",
        description="Serve a model over an OpenAI-style HTTP API.",
        formatter_class=_Help,
    )
    serve.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a GGUF file, a directory in Hugging Face layout, or a hub id; without it, the demo model of octavo[demo]",
    )
    add_server_flags(serve)
    add_engine_flags(serve)
    add_scheduling_flags(serve)
    commands.add_parser(
        "simulate", help="run a trace of requests without a model: how many pages, how long a queue", add_help=False
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
