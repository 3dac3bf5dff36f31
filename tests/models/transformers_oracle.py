"""Logits of a Hugging Face directory by transformers, in a process of its own: the oracle of the model tests.

    python -I transformers_oracle.py REQUEST.json OUTPUT.npz

The request is a list of jobs with ``directory``, ``prompts`` (lists of token ids) and ``rows`` (per prompt, the
positions whose logits are wanted); the output has one float32 array [rows, vocab_size] per prompt, named "job.prompt".
It must not see this repository: transformers tries to import an optional package called ``kernels``, as ours is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != REPOSITORY]
sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402


@torch.inference_mode()
def main() -> None:
    logits = {}
    for number, job in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        model = AutoModelForCausalLM.from_pretrained(
            job["directory"], dtype=torch.float32, attn_implementation="eager"
        ).eval()
        for index, (prompt, rows) in enumerate(zip(job["prompts"], job["rows"], strict=True)):
            output = model(torch.tensor([prompt]), logits_to_keep=torch.tensor(rows), use_cache=False)
            logits[f"{number}.{index}"] = output.logits[0].numpy()
    np.savez(sys.argv[2], **logits)


if __name__ == "__main__":
    main()
