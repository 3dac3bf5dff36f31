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

if TYPE_CHECKING:
    from server.options import ServeOptions

DEFAULT_PORT = 8000
API_KEY_VARIABLE = "OCTAVO_API_KEY"


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

    engine = EngineConfig(
        model="",
        dtype=parsed.dtype,
        kv_cache_dtype=parsed.kv_cache_dtype,
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
        api_keys=(*parsed.api_key, *_keys_of_environment()),
        engine=engine,
    )


def _keys_of_environment() -> list[str]:
    keys = (key.strip() for key in os.environ.get(API_KEY_VARIABLE, "").split(","))
    return [key for key in keys if key]


def _gibibytes(text: str) -> int:
    """Bytes in a number of GiB, for argparse."""
    try:
        size = int(float(text) * 2**30)
    except (ValueError, OverflowError):
        size = -1
    if size < 0:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of GiB, 0 or more")
    return size


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows a default where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, []) else super()._get_help_string(action)


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
    _add_server_flags(serve)
    _add_engine_flags(serve)
    commands.add_parser(
        "simulate", help="run a trace of requests without a model: how many pages, how long a queue", add_help=False
    )
    return parser


def _add_server_flags(serve: argparse.ArgumentParser) -> None:
    flags = serve.add_argument_group("server")
    flags.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 makes it reachable from other machines"
    )
    flags.add_argument("--port", type=int, default=DEFAULT_PORT, help="port to listen on; 0 takes any free one")
    flags.add_argument("--served-model-name", metavar="NAME", help="name in the API (default: from MODEL)")
    flags.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help=f"key that requests to /v1 must bring, one of several if given more than once; {API_KEY_VARIABLE} may "
        "name more, separated by commas, and keeps them out of the process list",
    )
    flags.add_argument("--revision", help="branch, tag or commit of a hub id")
    flags.add_argument(
        "--chat-template",
        metavar="FILE",
        help="Jinja file (or text) used instead of the model's own; plain-transcript is bundled for base models",
    )
    flags.add_argument(
        "--max-request-bytes",
        type=int,
        metavar="N",
        help="largest request body (default: 32 for each token of the context and 64 KiB more, at most 8 MiB)",
    )
    flags.add_argument(
        "--shutdown-timeout", type=float, default=30.0, metavar="S", help="seconds running requests get to finish"
    )
    flags.add_argument(
        "--engine-silence-limit",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds an engine with work may be silent before /health answers 503",
    )


def _add_engine_flags(serve: argparse.ArgumentParser) -> None:
    flags = serve.add_argument_group("engine")
    flags.add_argument("--device", default="auto", help="cpu, cuda or auto")
    flags.add_argument("--dtype", default="auto", help="float32, bfloat16, float16, or auto for the model's own")
    flags.add_argument(
        "--kv-cache-dtype",
        default="auto",
        metavar="DTYPE",
        help="dtype of KV pages: float32, bfloat16, float16, int8, fp8_e4m3 (or fp8), or auto for that of the model",
    )
    flags.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: those this process may use)")
    flags.add_argument(
        "--seed", type=int, metavar="N", help="seed of requests that bring none (default: another each time)"
    )
    flags.add_argument(
        "--max-model-len", type=int, metavar="N", help="longest context in tokens (default: the model's)"
    )
    flags.add_argument("--max-num-seqs", type=int, default=64, metavar="N", help="most requests in one step")
    flags.add_argument("--max-num-batched-tokens", type=int, default=512, metavar="N", help="most tokens in one step")
    flags.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens in one KV page")
    flags.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="reuse KV pages of prompts that begin alike",
    )
    flags.add_argument(
        "--gpu-memory-utilization",
        type=float,
        metavar="SHARE",
        help="share, 0 to 1, of the device's memory (on CPUs, of the memory left to this process) to use",
    )
    flags.add_argument("--kv-cache-memory-bytes", type=int, metavar="N", help="bytes of KV pages, instead of a share")
    flags.add_argument(
        "--audit-interval",
        type=int,
        metavar="N",
        help="account for every page every N steps too, not only when idle (costs 3 us a page)",
    )
    flags.add_argument(
        "--swap-space",
        type=_gibibytes,
        default=0,
        metavar="GiB",
        help="host memory for KV pages of preempted requests and of evicted prompts",
    )
    flags.add_argument("--num-gpu-blocks-override", type=int, metavar="N", help="KV pages, instead of bytes or a share")


if __name__ == "__main__":
    sys.exit(main())
