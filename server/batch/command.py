"""`octavo batch`: from the file of requests to the file of answers.

Puts the parts together and owns what the user sees. Statuses: 0 when every request has an answer, 1 when something
kept them from running, 3 when some answers are errors, 130 when it was interrupted; then the same command goes on.
"""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import orjson
from tqdm import tqdm

from engine.client import EngineClient
from server.batch.batch_input import BatchInput
from server.batch.batch_line import BatchError
from server.batch.batch_output import BatchOutput
from server.batch.batch_run import BatchAnswer, run_batch
from server.http.local_app import LocalApp
from server.model_start import FoundModel, ModelStart, find_model
from server.options import ModelOptions
from server.serving import loop_factory
from server.startup import say

SOME_FAILED = 3
INTERRUPTED = 130
WAVES = 2  # requests in flight, in terms of those that can run at once: the next are tokenized while these run


@dataclass(frozen=True, slots=True)
class BatchPaths:
    """``input`` is read, ``output`` is appended to; ``overwrite``: begin anew whatever it holds."""

    input: Path
    output: Path
    overwrite: bool = False


def run(options: ModelOptions, paths: BatchPaths) -> int:
    """Answer what is not answered yet; the exit status.

    Raises BatchError, CheckpointError, TextError or EngineStartError for what keeps it from running.
    """
    if paths.input.exists() and paths.output.exists() and paths.output.samefile(paths.input):
        raise BatchError(f"{paths.output}: is the input")
    requests = BatchInput(paths.input)
    if paths.overwrite:
        paths.output.unlink(missing_ok=True)
    with BatchOutput(paths.output, requests.custom_ids) as output:
        num_open = len(requests) - len(output.answered)
        if output.answered:
            say(f"octavo: {len(output.answered)} of {len(requests)} requests are answered already in {paths.output}")
        began = time.monotonic()
        report = _Report(len(requests), output)
        if num_open:
            model = find_model(options)
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                if not runner.run(_run(options, model, requests, report)):
                    so_far = f"{len(output.answered)} of {len(requests)} are answered"
                    say(f"octavo: interrupted; {so_far}: run it again to go on")
                    return INTERRUPTED
        say(report.summary(num_open, time.monotonic() - began, paths.output))
        return SOME_FAILED if output.num_failed else 0


class _Report:
    """Writes answers, and shows how far it is."""

    def __init__(self, num_requests: int, output: BatchOutput) -> None:
        self._output = output
        self._num_requests = num_requests
        self._bar: tqdm | None = None
        self.prompt_tokens = self.output_tokens = 0

    @property
    def output(self) -> BatchOutput:
        return self._output

    def open(self) -> None:
        self._bar = tqdm(
            total=self._num_requests,
            initial=len(self._output.answered),
            unit=" requests",
            smoothing=0.05,  # answers come in waves
            disable=None,
        )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, answer: BatchAnswer) -> None:
        line = answer.line.answer(answer.status, answer.request_id, answer.body)
        self._output.append(answer.line.custom_id, answer.status, line)
        usage = orjson.loads(answer.body).get("usage") or {}
        self.prompt_tokens += usage.get("prompt_tokens", usage.get("input_tokens", 0))
        self.output_tokens += usage.get("completion_tokens", usage.get("output_tokens", 0))
        if self._bar is not None:
            self._bar.update()
            self._bar.set_postfix_str(f"{self.output_tokens:,} tokens", refresh=False)

    def summary(self, num_run: int, seconds: float, path: Path) -> str:
        failed = self._output.num_failed
        ran = f"{num_run:,} requests in {seconds:.1f} s" if num_run else "nothing was left to do"
        tokens = f"{self.prompt_tokens:,} prompt and {self.output_tokens:,} output tokens"
        return (
            f"octavo: {ran}, {tokens}; {path} has {len(self._output.answered):,} answers, "
            f"{failed:,} of them {'an error' if failed == 1 else 'errors'}"
        )


async def _run(options: ModelOptions, model: FoundModel, requests: BatchInput, report: _Report) -> bool:
    """Whether all requests were answered before a signal came."""
    start = ModelStart(options, model)
    work = asyncio.create_task(_answer_all(start, requests, report))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        return False
    finally:
        report.close()
        await start.close()
    return True


async def _answer_all(start: ModelStart, requests: BatchInput, report: _Report) -> None:
    from server.app import create_app

    state = start.state()
    app = LocalApp(create_app(state))
    ready, _ = await start.finish(state)
    report.open()
    lines = requests.without(frozenset(report.output.answered))
    try:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(_fail_with(start.client))
            await run_batch(app, lines, report.add, WAVES * ready.max_num_seqs)
            watching.cancel()
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


async def _fail_with(client: EngineClient) -> None:
    await client.until_given_up()
    raise BatchError("the engine is down for good; run the command again to go on")
