"""The `octavo` command.

Knows flags and exit statuses; everything heavy is imported by the subcommand that needs it. Statuses: 0 for what was
done, 1 for what could not be (one sentence on stderr says why), 2 for wrong usage; a subcommand may have more.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from server.flags import (
    ADMIN_KEY_VARIABLE,
    API_KEY_VARIABLE,
    DEFAULT_LORA_RANK,
    add_adapter_flags,
    add_chat_flags,
    add_checkpoint_flags,
    add_engine_flags,
    add_inspect_flags,
    add_log_flags,
    add_model_flags,
    add_scheduling_flags,
    add_server_flags,
)

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.engine_process import EngineProcess
    from server.options import ServeOptions

# subcommands that are commands of their own
MODULES = {"simulate": "scheduler.simulation", "study": "benchmarks.kv_study"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    began = time.monotonic()
    _open_closed_streams()
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in MODULES:
        _become(MODULES[given[0]], given[1:])
    parsed = _parser().parse_args(given)
    with _engine_process(parsed) as parsed.engine_process:
        from engine.log_format import LogFormat, set_up_logging
        from server.observation.current import log_context

        set_up_logging(LogFormat(getattr(parsed, "log_format", LogFormat.TEXT)), log_context)
        try:
            return _run(parsed, began)
        except KeyboardInterrupt:
            return 130


def _engine_process(parsed: argparse.Namespace) -> contextlib.AbstractContextManager[EngineProcess | None]:
    """What takes longest to start, before anything else is imported, for the command that is sure to need it."""
    if parsed.run is not _serve:
        return contextlib.nullcontext()
    from engine.engine_process import EngineProcess
    from server.garbage_collection import wait_until_settled

    wait_until_settled()
    return EngineProcess()


def _open_closed_streams() -> None:
    """Have /dev/null for a stdin, stdout or stderr that is closed: else the next socket would get its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _become(module: str, arguments: Sequence[str]) -> NoReturn:
    """Become a command with flags and statuses of its own."""
    root = str(Path(__file__).resolve().parent.parent)
    search_path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", "-m", module, *arguments]
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": search_path})


def _run(parsed: argparse.Namespace, began: float) -> int:
    from engine.client import EngineStartError
    from engine.config import CheckpointError, ConfigError
    from engine.log_format import tell
    from server.batch.batch_line import BatchError
    from server.http.listener import ListenError
    from server.terminal.chat_source import ChatSourceError
    from server.text.errors import TextError

    try:
        status: int = parsed.run(parsed, began)
        return status
    except (
        BatchError,
        ChatSourceError,
        CheckpointError,
        ConfigError,
        EngineStartError,
        ListenError,
        TextError,
    ) as error:
        tell(logging.getLogger("octavo.server"), str(error), level=logging.ERROR)
        return 1


def _serve(parsed: argparse.Namespace, began: float) -> int:
    from server.serving import serve

    options = _options(parsed)
    options.validate()
    return serve(options, began, parsed.engine_process)


def _options(parsed: argparse.Namespace) -> ServeOptions:
    from server.options import ServeOptions

    return ServeOptions(
        **_model_choices(parsed),
        host=parsed.host,
        port=parsed.port,
        max_request_bytes=parsed.max_request_bytes,
        shutdown_timeout=parsed.shutdown_timeout,
        silence_limit=parsed.engine_silence_limit,
        stream_queue_position=parsed.stream_queue_position,
        allowed_origins=tuple(parsed.allowed_origin),
        metrics_compat=parsed.metrics_compat,
        enable_lora=parsed.enable_lora,
        api_keys=(*parsed.api_key, *_keys_of_environment()),
        admin_key=os.environ.get(ADMIN_KEY_VARIABLE) or None if parsed.admin_key is None else parsed.admin_key,
        log_requests=parsed.log_requests,
        otlp_traces_endpoint=parsed.otlp_traces_endpoint,
        engine=_engine_config(parsed),
    )


def _batch(parsed: argparse.Namespace, began: float) -> int:
    from server.batch.command import BatchPaths, run
    from server.options import ModelOptions

    options = ModelOptions(**_model_choices(parsed), engine=_engine_config(parsed))
    options.validate()
    return run(options, BatchPaths(parsed.input, parsed.output, parsed.overwrite))


def _chat(parsed: argparse.Namespace, began: float) -> int:
    from server.options import ModelOptions
    from server.terminal.chat_source import LocalSource, RemoteSource
    from server.terminal.command import run

    names = ("temperature", "top_p", "max_tokens", "seed")
    choices = {name: value for name in names if (value := getattr(parsed, name)) is not None}
    source: LocalSource | RemoteSource
    if parsed.url is not None:
        source = RemoteSource(parsed.url, api_key=next(iter(_keys_of_environment()), None), model=parsed.model)
    else:
        options = ModelOptions(**_model_choices(parsed), engine=_engine_config(parsed))
        options.validate()
        source = LocalSource(options)
    with contextlib.closing(source):
        return run(source, system=parsed.system, choices=choices)


def _inspect(parsed: argparse.Namespace, began: float) -> int:
    from server.inspection.command import run

    return run(parsed)


def _model_choices(parsed: argparse.Namespace) -> dict[str, Any]:
    names = (
        "model",
        "revision",
        "offline",
        "served_model_name",
        "chat_template",
        "trust_request_chat_template",
        "tool_call_parser",
        "reasoning_parser",
    )
    chosen = {name: getattr(parsed, name) for name in names}
    return {**chosen, "lora_modules": tuple(parsed.lora_modules)}


def _engine_config(parsed: argparse.Namespace) -> EngineConfig:
    from engine.config import EngineConfig
    from engine.log_format import LogFormat
    from server.tenant import tenant_name

    return EngineConfig(
        model="",
        dtype=parsed.dtype,
        kv_cache_dtype=parsed.kv_cache_dtype,
        quantization=parsed.quantization,
        keep_packed_weights=parsed.keep_packed_weights,
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
        max_lora_rank=parsed.max_lora_rank,
        log_format=LogFormat(getattr(parsed, "log_format", LogFormat.TEXT)),
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
    add_model_flags(serve)
    add_adapter_flags(serve)
    add_server_flags(serve)
    add_log_flags(serve)
    add_engine_flags(serve)
    add_scheduling_flags(serve)
    serve.set_defaults(run=_serve)
    batch = commands.add_parser(
        "batch",
        help="answer a file of requests in the OpenAI batch format, without a server",
        description="Answer the requests of a JSON Lines file in the OpenAI batch format, without a server. A run that "
        "was stopped, or killed, goes on where it was when the same command is given again.",
        formatter_class=_Help,
    )
    batch.add_argument("input", type=Path, metavar="INPUT", help="file of requests, one JSON object a line")
    add_model_flags(batch)
    add_adapter_flags(batch)
    batch.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="file of answers, in the order they come"
    )
    batch.add_argument("--overwrite", action="store_true", help="begin anew, whatever FILE holds")
    add_engine_flags(batch)
    add_scheduling_flags(batch)
    batch.set_defaults(run=_batch)
    chat = commands.add_parser(
        "chat",
        help="talk to a model in the terminal",
        description="Talk to a model in the terminal: to that of a running server with --url, else to one of its own. "
        f"{API_KEY_VARIABLE} may hold the server's key.",
        formatter_class=_Help,
    )
    add_model_flags(chat)
    add_chat_flags(chat)
    add_engine_flags(chat)
    add_scheduling_flags(chat)
    chat.set_defaults(run=_chat, lora_modules=[], max_lora_rank=DEFAULT_LORA_RANK)
    inspect = commands.add_parser(
        "inspect",
        help="say what a model is, and how many tokens and sequences of it fit into a memory, without loading it",
        description="Say what a model is, and how many tokens and sequences of it fit into a memory. Reads descriptions"
        " and headers of files, no weights; of a model on the hub nothing else is downloaded.",
        formatter_class=_Help,
    )
    add_checkpoint_flags(inspect)
    add_inspect_flags(inspect)
    inspect.set_defaults(run=_inspect)
    commands.add_parser(
        "simulate", help="run a trace of requests without a model: how many pages, how long a queue", add_help=False
    )
    commands.add_parser(
        "study", help="measure what KV caching is for, on a model, and write it down with plots", add_help=False
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
