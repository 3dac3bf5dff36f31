"""Serves OpenVINO GenAI, which brings no server, over the little of the OpenAI API that ``benchmarks.serve`` speaks.

    VENV/bin/python benchmarks/openvino_front.py openvino-fp16 --tokenizer hf/tokenizer.json --port 8205

Runs in the peer's own virtual environment (openvino-genai, tokenizers, aiohttp), so it imports nothing of ours. Two
processes, as Octavo has: a step of the pipeline holds the interpreter's lock, and would keep tokens from leaving.
Only greedy, streamed completions.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from aiohttp import web
from tokenizers import Tokenizer


@dataclass(frozen=True)
class Submission:
    """A request on its way to the pipeline."""

    number: int
    token_ids: list[int]
    max_tokens: int
    ignores_eos: bool


@dataclass(frozen=True)
class Delta:
    """What a step drew for one request."""

    number: int
    token_ids: list[int]
    is_last: bool


def run_pipeline(connection: Connection, directory: str, settings: dict[str, int]) -> None:
    """The second process: steps while there is work, until the first one is gone."""
    import numpy as np
    import openvino
    import openvino_genai as genai

    limits = genai.SchedulerConfig()
    for name in ("cache_size", "max_num_seqs", "max_num_batched_tokens"):
        setattr(limits, name, settings[name])
    limits.enable_prefix_caching = True
    limits.dynamic_split_fuse = True
    pipeline = genai.ContinuousBatchingPipeline(
        directory, limits, "CPU", {"INFERENCE_NUM_THREADS": settings["threads"]}
    )
    connection.send(True)
    running: dict[int, Any] = {}
    while True:
        while not running or connection.poll():
            try:
                new: Submission = connection.recv()
            except EOFError:
                return
            config = genai.GenerationConfig()
            config.max_new_tokens, config.ignore_eos, config.do_sample = new.max_tokens, new.ignores_eos, False
            config.set_eos_token_id(1)
            prompt = openvino.Tensor(np.array([new.token_ids], dtype=np.int64))
            running[new.number] = pipeline.add_request(new.number, prompt, config)
        pipeline.step()
        deltas = []
        for number, handle in list(running.items()):
            drawn: list[int] = []
            while handle.can_read():
                drawn += [int(one) for output in handle.read().values() for one in output.generated_ids]
            is_last = handle.get_status() != genai.GenerationStatus.RUNNING
            if is_last:
                del running[number]
            if drawn or is_last:
                deltas.append(Delta(number, drawn, is_last))
        if deltas:
            connection.send(deltas)


class Front:
    """The HTTP side: one queue for each request under way."""

    def __init__(self, connection: Connection, tokenizer: Tokenizer, model: str) -> None:
        self._connection = connection
        self._tokenizer = tokenizer
        self._model = model
        self._numbers = itertools.count()
        self._queues: dict[int, asyncio.Queue[Delta]] = {}

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand deltas to the loop, from a thread of their own."""
        while True:
            try:
                deltas = self._connection.recv()
            except EOFError:  # the pipeline is gone, and nothing can be answered any more
                os._exit(1)
            loop.call_soon_threadsafe(self._deliver, deltas)

    def _deliver(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self._queues[delta.number].put_nowait(delta)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._model, "object": "model"}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = body["prompt"]
        token_ids = self._tokenizer.encode(prompt).ids if isinstance(prompt, str) else prompt
        number = next(self._numbers)
        queue = self._queues[number] = asyncio.Queue()
        self._connection.send(Submission(number, token_ids, body["max_tokens"], bool(body.get("ignore_eos"))))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        num_tokens, is_last = 0, False
        while not is_last:
            delta = await queue.get()
            is_last = delta.is_last
            for token_id in delta.token_ids:
                num_tokens += 1
                choice = {"index": 0, "text": self._tokenizer.decode([token_id]), "finish_reason": None}
                await response.write(self._event(choices=[choice]))
        del self._queues[number]
        usage = {"prompt_tokens": len(token_ids), "completion_tokens": num_tokens}
        await response.write(self._event(choices=[], usage=usage) + b"data: [DONE]\n\n")
        return response

    def _event(self, **fields: object) -> bytes:
        event = {"object": "text_completion", "created": int(time.time()), "model": self._model, **fields}
        return b"data: " + json.dumps(event).encode() + b"\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", help="a model that optimum-cli exported")
    parser.add_argument("--tokenizer", required=True, metavar="FILE", help="tokenizer.json")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache-size", type=int, default=2, metavar="GIB", help="memory for pages")
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    arguments = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    settings = {name: getattr(arguments, name) for name in ("cache_size", "max_num_seqs", "max_num_batched_tokens")}
    settings["threads"] = arguments.threads
    engine = multiprocessing.get_context("spawn").Process(
        target=run_pipeline, args=(theirs, arguments.directory, settings), daemon=True
    )
    engine.start()
    theirs.close()
    ours.recv()
    front = Front(ours, Tokenizer.from_file(arguments.tokenizer), "gemma")

    async def start_listening(app: web.Application) -> None:
        threading.Thread(target=front.listen, args=(asyncio.get_running_loop(),), daemon=True).start()

    app = web.Application()
    app.on_startup.append(start_listening)
    app.router.add_get("/v1/models", front.models)
    app.router.add_post("/v1/completions", front.complete)
    web.run_app(app, host=arguments.host, port=arguments.port, print=None)


if __name__ == "__main__":
    main()
