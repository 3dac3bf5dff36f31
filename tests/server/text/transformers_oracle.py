"""Token ids of Hugging Face directories by transformers, in a process of its own: the oracle of the tokenizer tests.

    python -I transformers_oracle.py REQUEST.json OUTPUT.json

The request has ``lines``, and per job a ``directory`` and whether to put special tokens around a line; the output
has, for each job, the ids of each line. It must not see this repository: transformers tries to import an optional
package called ``kernels``, as ours is.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != REPOSITORY]
sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]

from transformers import AutoTokenizer  # noqa: E402


def main() -> None:
    logging.disable(logging.WARNING)
    request = json.loads(Path(sys.argv[1]).read_text())
    answers = []
    for job in request["jobs"]:
        tokenizer = AutoTokenizer.from_pretrained(job["directory"])
        answers.append(tokenizer(request["lines"], add_special_tokens=job["add_special_tokens"]).input_ids)
    Path(sys.argv[2]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
