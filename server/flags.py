"""The flags of `octavo serve`, `octavo batch`, `octavo chat` and `octavo inspect`, in their groups.

Knows names, types, defaults and help; what the values must be is checked where they are used. Imports nothing heavy.
"""

from __future__ import annotations

import argparse
import re

DEFAULT_PORT = 8000
DEFAULT_LORA_RANK = 64
API_KEY_VARIABLE = "OCTAVO_API_KEY"
ADMIN_KEY_VARIABLE = "OCTAVO_ADMIN_KEY"


def add_checkpoint_flags(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """MODEL, and where it is found; the group, for more."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a GGUF file, a directory in Hugging Face layout, or a hub id (org/name, or org/name:Q4_K_M for one GGUF "
        "model of several); without it, the demo model of octavo[demo]",
    )
    flags = parser.add_argument_group("model")
    flags.add_argument("--revision", help="branch, tag or commit of a hub id")
    flags.add_argument(
        "--offline", action="store_true", help="take a hub id from the cache alone; HF_HUB_OFFLINE=1 means the same"
    )
    return flags


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """MODEL, and how it is called and asked."""
    flags = add_checkpoint_flags(parser)
    flags.add_argument("--served-model-name", metavar="NAME", help="name in the API (default: from MODEL)")
    flags.add_argument(
        "--chat-template",
        metavar="FILE",
        help="Jinja file (or text) used instead of the model's own; plain-transcript is bundled for base models",
    )
    flags.add_argument(
        "--trust-request-chat-template",
        action="store_true",
        help="run chat templates that chats bring in chat_template; a template is a program",
    )
    flags.add_argument(
        "--tool-call-parser",
        default="auto",
        metavar="NAME",
        help="how the model writes tool calls: auto for what its chat template shows, hermes, llama3_json, mistral, "
        "pythonic, json, or none to refuse tools",
    )
    flags.add_argument(
        "--reasoning-parser",
        default="auto",
        metavar="NAME",
        help="tags that the model puts around its reasoning: auto for those it knows, think, mistral, or none to leave "
        "them in the content",
    )


def add_adapter_flags(parser: argparse.ArgumentParser) -> None:
    flags = parser.add_argument_group("adapters", "LoRA adapters in PEFT's layout; docs/lora.md explains them.")
    flags.add_argument(
        "--lora-modules",
        nargs="+",
        action="extend",
        type=_named_path,
        default=[],
        metavar="NAME=PATH",
        help="adapters to load at the start, which requests choose by naming NAME as their model; PATH may be a hub id",
    )
    flags.add_argument(
        "--max-lora-rank", type=int, default=DEFAULT_LORA_RANK, metavar="N", help="largest rank of an adapter"
    )


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    flags = parser.add_argument_group("server")
    flags.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 makes it reachable from other machines"
    )
    flags.add_argument("--port", type=int, default=DEFAULT_PORT, help="port to listen on; 0 takes any free one")
    flags.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help=f"key that requests to /v1 must bring, one of several if given more than once; {API_KEY_VARIABLE} may "
        "name more, separated by commas, and keeps them out of the process list",
    )
    flags.add_argument(
        "--admin-key",
        metavar="KEY",
        help="key that the page map at /dashboard asks for; without one it is open, unless there are API keys: then it "
        f"stays shut. {ADMIN_KEY_VARIABLE} may hold it instead",
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
    flags.add_argument(
        "--allowed-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="origin of web pages whose scripts may ask this server, such as https://example.com, one of several if "
        "given more than once; * for any",
    )
    flags.add_argument(
        "--metrics-compat",
        default="none",
        metavar="NAMES",
        help="vllm shows the numbers of /metrics under vLLM's names too, for boards and gateways that ask for those",
    )
    flags.add_argument(
        "--stream-queue-position",
        action="store_true",
        help="tell streams that wait their place in the queue, in comment lines; 200 is then sent before they start",
    )
    flags.add_argument(
        "--enable-lora",
        action="store_true",
        help="let POST /v1/load_lora_adapter load adapters from this machine's disk while the server runs; where there "
        "are API keys it asks for the admin key",
    )


def add_log_flags(parser: argparse.ArgumentParser) -> None:
    flags = parser.add_argument_group("logs and traces")
    flags.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="what is written to stderr: text, or one JSON object a line",
    )
    flags.add_argument(
        "--log-requests",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="log one line for each API request that is over: ids, outcome, tokens, seconds, pages",
    )
    flags.add_argument(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="send spans of requests to this OTLP collector over HTTP, such as http://127.0.0.1:4318/v1/traces; needs "
        "octavo[tracing], and follows OTEL_* variables of the environment",
    )


def add_chat_flags(parser: argparse.ArgumentParser) -> None:
    flags = parser.add_argument_group("chat")
    flags.add_argument("--url", help="a running server to talk to; MODEL is then the name of a model there")
    flags.add_argument("--system", metavar="TEXT", help="what the model is told before everything else")
    flags.add_argument("--temperature", type=float, metavar="T", help="0 for the most likely words")
    flags.add_argument("--top-p", type=float, metavar="P", help="share of probability that tokens are drawn from")
    flags.add_argument("--max-tokens", type=int, metavar="N", help="longest answer")


def add_inspect_flags(parser: argparse.ArgumentParser) -> None:
    flags = parser.add_argument_group("memory")
    flags.add_argument(
        "--memory",
        type=_size,
        metavar="SIZE",
        help="memory for weights and KV pages, such as 24GB, 80GiB or bytes (default: what this machine has free)",
    )
    flags.add_argument(
        "--kv-cache-memory-bytes", type=int, metavar="N", help="bytes of KV pages alone, as for a server"
    )
    flags.add_argument(
        "--kv-cache-dtype",
        default="auto",
        metavar="DTYPE",
        help="dtype of KV pages: one of a server's, or auto for all",
    )
    flags.add_argument(
        "--lengths",
        type=_lengths,
        metavar="N1,N2,...",
        help="tokens of sequences (default: 1024,8192,32768, as far as the context goes)",
    )
    flags.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens in one KV page")
    flags.add_argument("--max-model-len", type=int, metavar="N", help="longest context (default: the model's)")
    flags.add_argument("--json", action="store_true", help="print one JSON object")


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    flags = parser.add_argument_group("engine")
    flags.add_argument("--device", default="auto", help="cpu, cuda or auto")
    flags.add_argument("--dtype", default="auto", help="float32, bfloat16, float16, or auto for the model's own")
    flags.add_argument(
        "--quantization",
        default="auto",
        metavar="FORM",
        help="what weights are kept as: auto for the bits of a quantised file, none for floats of --dtype, int8 or "
        "int4 to quantise any model when it is loaded",
    )
    flags.add_argument(
        "--keep-packed-weights",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep what CPUs make of quantised weights in $OCTAVO_CACHE/packed, which the next start maps instead of "
        "packing them again",
    )
    flags.add_argument(
        "--kv-cache-dtype",
        default="auto",
        metavar="DTYPE",
        help="dtype of KV pages: float32, bfloat16, float16, int8, fp8_e4m3 (or fp8), or auto for that of the model, "
        "bfloat16 beside quantised weights on CPUs",
    )
    flags.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: those this process may use)")
    flags.add_argument(
        "--seed", type=int, metavar="N", help="seed of requests that bring none (default: another each time)"
    )
    flags.add_argument(
        "--max-model-len", type=int, metavar="N", help="longest context in tokens (default: the model's)"
    )
    flags.add_argument(
        "--enforce-eager", action="store_true", help="launch every step on a GPU kernel by kernel, without CUDA graphs"
    )
    flags.add_argument(
        "--deterministic",
        action="store_true",
        help="the same bits for a request whatever runs beside it and however its prompt is cut; slower",
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


def add_scheduling_flags(parser: argparse.ArgumentParser) -> None:
    flags = parser.add_argument_group("scheduling", "Who runs when; docs/scheduling.md explains each.")
    flags.add_argument(
        "--scheduling-policy",
        default="fcfs",
        metavar="POLICY",
        help="who goes first: fcfs (first come), priority (what requests ask for) or fair (shares of API keys)",
    )
    flags.add_argument(
        "--priority-aging",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds of waiting that make up for one level of priority",
    )
    flags.add_argument(
        "--tenant-weights",
        type=_weights,
        default=(),
        metavar="W1,W2,...",
        help="shares of the API keys, in the keys' order, under --scheduling-policy fair (default: all alike)",
    )
    flags.add_argument(
        "--max-queued-requests",
        type=int,
        default=1024,
        metavar="N",
        help="most requests that wait; those beyond get 429",
    )
    flags.add_argument(
        "--max-queued-tokens",
        type=int,
        default=1_048_576,
        metavar="N",
        help="most tokens that waiting requests have to compute; requests beyond get 429",
    )
    flags.add_argument(
        "--queue-timeout",
        type=float,
        metavar="S",
        help="seconds a request may wait to start; then it gets 503 (default: no limit)",
    )
    flags.add_argument(
        "--long-prefill-token-threshold",
        type=int,
        metavar="N",
        help="most tokens of a step for long prompts while somebody streams (default: half of the step)",
    )
    flags.add_argument(
        "--watermark-tokens",
        type=int,
        default=32,
        metavar="N",
        help="tokens by which every running request must be able to grow before another starts",
    )
    flags.add_argument(
        "--max-overtakes",
        type=int,
        default=16,
        metavar="N",
        help="requests that may start before an older one for which too few pages are free",
    )
    flags.add_argument(
        "--speculative",
        default="none",
        metavar="METHOD",
        help="guess tokens, so that one step may yield several: ngram guesses what followed the same few earlier in a "
        "request's own text. No answer changes; docs/speculation.md says when it pays",
    )
    flags.add_argument(
        "--num-speculative-tokens", type=int, default=4, metavar="N", help="most tokens guessed for a request in a step"
    )
    flags.add_argument(
        "--async-scheduling",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="schedule a step while the one before it runs; on CPUs it does not pay",
    )


def _named_path(text: str) -> tuple[str, str]:
    """A name and a path, for argparse."""
    name, is_there, path = text.partition("=")
    if not is_there:
        raise argparse.ArgumentTypeError(f"{text}: must be NAME=PATH")
    return name, path


def _size(text: str) -> int:
    """Bytes in a number with a unit, for argparse."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([KMGT]?)(i?)B?", text, re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text}: must be a size such as 24GB, 80GiB or 1000000")
    power = " KMGT".index(found[2].upper() or " ")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power)


def _lengths(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas, for argparse."""
    lengths = tuple(int(part) for part in text.split(",") if part.strip().isdecimal())
    if len(lengths) != len(text.split(",")) or 0 in lengths:
        raise argparse.ArgumentTypeError(f"{text}: must be numbers of tokens separated by commas")
    return lengths


def _weights(text: str) -> tuple[float, ...]:
    """Numbers separated by commas, for argparse."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: must be numbers separated by commas") from None


def _gibibytes(text: str) -> int:
    """Bytes in a number of GiB, for argparse."""
    try:
        size = int(float(text) * 2**30)
    except (ValueError, OverflowError):
        size = -1
    if size < 0:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of GiB, 0 or more")
    return size
