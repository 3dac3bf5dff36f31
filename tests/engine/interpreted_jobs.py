"""Engines over the Triton kernels, in Triton's interpreter: answers jobs of a `JobProcess`, "steps" and "bits".

In a process of its own, since Triton asks for its interpreter when it is imported (TRITON_INTERPRET), and one for many
jobs, since importing takes longer than most of them.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

from tests.engine import interpreted_bits, interpreted_steps

JOBS = {"steps": interpreted_steps.answer, "bits": interpreted_bits.answer}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = {"answer": JOBS[request.pop("job")](**request)}
        except Exception:
            reply = {"error": traceback.format_exc()}
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
