"""Flags of ``octavo simulate``: what is said on the command line, as settings, a trace and a target.

Wrong arguments end the command with one sentence and status 2.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from scheduler.config import SchedulerConfig
from scheduler.policy import POLICY_NAMES
from scheduler.simulation.page_search import Target
from scheduler.simulation.settings import Settings, parse_windows
from scheduler.simulation.step_cost import StepCost
from scheduler.simulation.trace import MAX_TOKENS
from scheduler.simulation.workload import Workload

PROGRAM = "octavo simulate"
LIMITS = SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=512)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{PROGRAM}: {message}\n")


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows a default where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, {}, False) else super()._get_help_string(action)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; SystemExit with status 2 where it is wrong."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if (parsed.trace is None) == (parsed.requests is None):
        parser.error("either --trace FILE or --requests N with --rate is needed")
    if parsed.requests is not None and parsed.rate is None:
        parser.error("--requests needs --rate, in requests a second")
    if bool(parsed.pages) == parsed.find_pages:
        parser.error("either --pages N, once or several times, or --find-pages is needed")
    if parsed.find_pages and None in (parsed.target_ttft, parsed.target_preemptions):
        parser.error("--find-pages needs --target-ttft and --target-preemptions")
    return parsed


def settings_of(parsed: argparse.Namespace) -> Settings:
    """The simulated server."""
    return Settings(
        limits=SchedulerConfig(
            max_num_seqs=parsed.max_num_seqs,
            max_num_batched_tokens=parsed.max_num_batched_tokens,
            long_prefill_token_threshold=parsed.long_prefill_token_threshold,
            max_queued_requests=parsed.max_queued_requests,
            max_queued_tokens=parsed.max_queued_tokens,
            watermark_tokens=parsed.watermark_tokens,
            max_overtakes=parsed.max_overtakes,
            seconds_per_page=parsed.step_per_moved_page,
        ),
        cost=StepCost(
            base=parsed.step_base,
            per_token=parsed.step_per_token,
            per_context_token=parsed.step_per_context_token,
            per_moved_page=parsed.step_per_moved_page,
        ),
        windows=parsed.windows,
        block_size=parsed.block_size,
        prefix_caching=parsed.enable_prefix_caching,
        num_host_pages=parsed.host_pages,
        policy=parsed.policy,
        priority_aging=parsed.priority_aging,
        tenant_weights=parsed.tenant_weights,
        queue_timeout=parsed.queue_timeout,
        timeout=parsed.timeout,
        forecast_every=parsed.forecast_every,
    )


def workload_of(parsed: argparse.Namespace) -> Workload:
    """The trace that is drawn."""
    return Workload(
        num_requests=parsed.requests,
        rate=parsed.rate,
        mean_prompt=parsed.mean_prompt,
        mean_output=parsed.mean_output,
        length_sigma=parsed.length_sigma,
        max_tokens=parsed.max_tokens,
        prefix_share=parsed.prefix_share,
        num_prefixes=parsed.prefixes,
        prefix_tokens=parsed.prefix_tokens,
        tenants=parsed.tenants,
        seed=parsed.seed,
    )


def target_of(parsed: argparse.Namespace) -> Target:
    """What a number of pages must reach."""
    return Target(ttft=parsed.target_ttft, preemptions=parsed.target_preemptions)


# ---- values


def _number(
    kind: type[int] | type[float], least: float, what: str, most: float = sys.float_info.max
) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not {what}")
        return value

    return convert


_ONE_OR_MORE = _number(int, 1, "a whole number of at least 1")
_NONE_OR_MORE = _number(int, 0, "a whole number of at least 0")
_SECONDS = _number(float, 0.0, "a number of seconds, 0 to 1e9", 1e9)
_FIGURE = _number(float, 0.0, "a number, 0 or more")
_SIGMA = _number(float, 0.0, "a number from 0 to 5", 5.0)
_MEAN_TOKENS = _number(float, math.ulp(0.0), f"a number above 0, up to {MAX_TOKENS}", MAX_TOKENS)
_POSITIVE = _number(float, math.ulp(0.0), "a number above 0")


def _share(text: str) -> float:
    value = _number(float, 0.0, "a share from 0 to 1")(text)
    if value > 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not a share from 0 to 1")
    return value


def _windows(text: str) -> tuple[int | None, ...]:
    try:
        return parse_windows(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _by_name(text: str) -> dict[str, float]:
    values = {}
    for part in text.split(","):
        name, sign, number = part.strip().rpartition("=")
        if not sign or not name:
            raise argparse.ArgumentTypeError(f"{part.strip()!r} is not NAME=NUMBER")
        values[name] = _POSITIVE(number)
    return values


# ---- flags


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM,
        description="Run a trace of requests through Octavo's own scheduler and block manager, without a model, on a "
        "simulated clock.",
        formatter_class=_Help,
        allow_abbrev=False,
    )
    _add_trace_flags(parser)
    _add_server_flags(parser)
    _add_step_flags(parser)
    _add_result_flags(parser)
    return parser


Flag = tuple[str, Callable[[str], object], object, str, str]


def _add(group: argparse._ArgumentGroup, flags: Iterable[Flag]) -> None:
    for name, kind, default, metavar, text in flags:
        group.add_argument(name, type=kind, default=default, metavar=metavar, help=text)


def _add_trace_flags(parser: argparse.ArgumentParser) -> None:
    trace = parser.add_argument_group("trace", "Read from a file, or drawn: --requests and --rate.")
    _add(
        trace,
        [
            ("--trace", Path, None, "FILE", "requests, one JSON object a line (docs/simulate.md)"),
            ("--requests", _ONE_OR_MORE, None, "N", "draw so many requests"),
            ("--rate", _POSITIVE, None, "R", "requests a second, a Poisson process"),
            ("--mean-prompt", _MEAN_TOKENS, 200.0, "N", "mean tokens of a prompt, lognormal"),
            ("--mean-output", _MEAN_TOKENS, 60.0, "N", "mean tokens of an answer, lognormal"),
            ("--length-sigma", _SIGMA, 0.8, "S", "standard deviation of the logarithm of lengths"),
            ("--max-tokens", _ONE_OR_MORE, None, "N", "what clients allow (default: 4 times the mean answer)"),
            ("--prefix-share", _share, 0.0, "SHARE", "share of requests that begin with a shared prefix"),
            ("--prefixes", _ONE_OR_MORE, 1, "K", "number of shared prefixes"),
            ("--prefix-tokens", _ONE_OR_MORE, 128, "N", "tokens of each shared prefix"),
            ("--tenants", _by_name, {}, "A=N,B=N", "tenants and their parts of the traffic"),
            ("--seed", _NONE_OR_MORE, 0, "N", "another seed draws another trace"),
        ],
    )


def _add_server_flags(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server", "Flags of `octavo serve` mean the same here.")
    server.add_argument(
        "--pages",
        type=_ONE_OR_MORE,
        action="append",
        metavar="N",
        help="KV pages; given more than once, sizes compared",
    )
    server.add_argument(
        "--policy", "--scheduling-policy", choices=POLICY_NAMES, default=POLICY_NAMES[0], help="who goes first"
    )
    server.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="reuse KV pages of prompts that begin alike",
    )
    _add(
        server,
        [
            ("--block-size", _ONE_OR_MORE, 16, "N", "tokens in one KV page"),
            (
                "--windows",
                _windows,
                "full",
                "LIST",
                'layers by window: "full", or "full x3, 512 x15" (one full layer)',
            ),
            ("--max-num-seqs", _ONE_OR_MORE, LIMITS.max_num_seqs, "N", "most requests in one step"),
            ("--max-num-batched-tokens", _ONE_OR_MORE, LIMITS.max_num_batched_tokens, "N", "most tokens in one step"),
            ("--long-prefill-token-threshold", _ONE_OR_MORE, None, "N", "tokens beyond which a prompt is long"),
            ("--watermark-tokens", _NONE_OR_MORE, LIMITS.watermark_tokens, "N", "growth left to all who run"),
            ("--max-overtakes", _NONE_OR_MORE, LIMITS.max_overtakes, "N", "starts before one that waits for pages"),
            ("--max-queued-requests", _NONE_OR_MORE, LIMITS.max_queued_requests, "N", "requests beyond are refused"),
            ("--max-queued-tokens", _NONE_OR_MORE, LIMITS.max_queued_tokens, "N", "requests beyond are refused"),
            ("--queue-timeout", _SECONDS, None, "S", "seconds a request waits before it is refused"),
            ("--timeout", _SECONDS, None, "S", "seconds after which a request is ended"),
            ("--priority-aging", _POSITIVE, 10.0, "S", "seconds of waiting that make up for one level of priority"),
            ("--tenant-weights", _by_name, {}, "A=N,B=N", "tenants' shares under --policy fair (1 where none)"),
            ("--host-pages", _NONE_OR_MORE, 0, "N", "pages of host memory for what is preempted or evicted"),
        ],
    )


def _add_step_flags(parser: argparse.ArgumentParser) -> None:
    step = parser.add_argument_group("step time", "The sum of these; the defaults are no machine in particular.")
    _add(
        step,
        [
            ("--step-base", _SECONDS, 0.01, "S", "seconds of every step"),
            ("--step-per-token", _SECONDS, 1e-4, "S", "seconds for each token computed"),
            ("--step-per-context-token", _SECONDS, 0.0, "S", "seconds for each token of context that is read"),
            ("--step-per-moved-page", _SECONDS, 2e-5, "S", "seconds for each page moved to host memory or back"),
        ],
    )


def _add_result_flags(parser: argparse.ArgumentParser) -> None:
    result = parser.add_argument_group("result")
    result.add_argument("--find-pages", action="store_true", help="find the fewest pages that meet both targets")
    _add(
        result,
        [
            ("--target-ttft", _SECONDS, None, "S", "p99 of the time to the first token, at most"),
            ("--target-preemptions", _FIGURE, None, "SHARE", "preemptions for each request, at most"),
            ("--forecast-every", _ONE_OR_MORE, 100, "K", "check the forecast of every K-th request"),
            ("--plot", Path, None, "FILE", "write a .png or .svg of pages and requests over time"),
        ],
    )
    result.add_argument("--json", action="store_true", help="print JSON instead of a table")
    result.add_argument("--progress", action="store_true", help="say how far it is, on stderr")
