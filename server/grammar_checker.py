"""Whether a grammar compiles, found out before the engine sees it, in a process that is ended when that takes too long.

Knows nothing of vocabularies. Invariants: no grammar stalls this process or the engine's; a problem is told in words
for the client; what was found to compile is remembered, so that a schema that many requests have is looked at once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import OrderedDict
from pathlib import Path

import msgspec

from engine.sampling_params import Grammar

MOST_SECONDS = 20.0  # of waiting; the process itself ends after less of computing
MOST_AT_ONCE = 2
MOST_REMEMBERED = 512
TOO_COMPLEX = "it is too complex: to compile it takes too long, or too much memory"


class GrammarChecker:
    """Remembers grammars that compile."""

    def __init__(self) -> None:
        self._known: OrderedDict[Grammar, None] = OrderedDict()
        self._places = asyncio.Semaphore(MOST_AT_ONCE)

    def knows(self, grammar: Grammar) -> bool:
        """Whether it is remembered to compile; it is then the one used last."""
        if grammar not in self._known:
            return False
        self._known.move_to_end(grammar)
        return True

    async def problem(self, grammar: Grammar) -> str | None:
        """What keeps it from being compiled, or None. Cancel it to end the process that tries."""
        if not self.knows(grammar):
            async with self._places:
                problem = await _check(grammar)
            if problem is not None:
                return problem
        self._known[grammar] = None
        self._known.move_to_end(grammar)
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        return None


async def _check(grammar: Grammar) -> str | None:
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "engine.grammar_check"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        async with asyncio.timeout(MOST_SECONDS):
            output, _ = await process.communicate(msgspec.json.encode(grammar))
    except TimeoutError:
        return TOO_COMPLEX
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        return TOO_COMPLEX
    return output.decode("utf-8", "replace") or None
