"""Says whether a grammar compiles: a process of its own, since some take for ever and a process can be ended.

    python -m engine.grammar_check < GRAMMAR > PROBLEM      a `Grammar` as JSON in; nothing out where it compiles

Invariant: it ends by itself, after so much CPU time or for want of memory.
"""

from __future__ import annotations

import resource
import sys

import msgspec

from engine.grammar_source import GrammarError, check
from engine.sampling_params import Grammar

MOST_CPU_SECONDS = 5
MOST_BYTES = 2 << 30


def main() -> int:
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_SECONDS, MOST_CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    grammar = msgspec.json.decode(sys.stdin.buffer.read(), type=Grammar)
    try:
        check(grammar)
    except GrammarError as error:
        sys.stdout.write(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
