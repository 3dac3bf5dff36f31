"""What transformers says, in a process of its own: the oracle of models and tokenizers.

Reads jobs from standard input, one JSON object a line with its kind under ``job``, and writes a line for each:
``{"answer": ...}`` or ``{"error": TRACEBACK}``. Ends with its input. Importing transformers takes far longer than most
jobs, so that one process serves a whole session; `tests.transformers_process` is its other end. It must not see this
repository: transformers tries to import an optional package called ``kernels``, as ours is.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != REPOSITORY]
sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # noqa: E402


def checkpoint(
    *,
    directory: str,
    model_type: str,
    config: dict[str, Any],
    seed: int,
    prompts: list[list[int]],
    num_steps: int,
    by_token: bool,
) -> None:
    """A tiny random checkpoint of transformers' own class, with the logits and greedy tokens of this class.

    The directory gets what `save_pretrained` writes, and ``expected.npz``: per prompt ``i`` float32 "prompt.i"
    [len(prompt), vocab_size], "tokens.i" [num_steps], what the model goes on with, and "steps.i"
    [num_steps, vocab_size], the logits after each of these. Every step is a forward over all tokens, without a cache,
    but where the job says ``by_token``: then tokens are fed one by one into a cache, for rules that depend on the
    length.
    """
    settings = AutoConfig.for_model(model_type, **config)
    settings._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    _draw_weights(model, seed)
    model.save_pretrained(directory)
    arrays = {}
    for index, prompt in enumerate(prompts):
        tokens = list(prompt)
        rows = _logits_of(model, tokens, by_token)
        arrays[f"prompt.{index}"] = rows.numpy()
        steps = []
        for _ in range(num_steps):
            tokens.append(int(rows[-1].argmax()))
            rows = _logits_of(model, tokens, by_token)
            steps.append(rows[-1].numpy())
        arrays[f"tokens.{index}"] = np.array(tokens[len(prompt) :])
        arrays[f"steps.{index}"] = np.stack(steps)
    np.savez(Path(directory) / "expected.npz", **arrays)


def _draw_weights(model: torch.nn.Module, seed: int) -> None:
    """Weights in whose logits every part has a say: norms near their neutral value, biases that are not zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith("bias") or "sinks" in name:
            weight.copy_(0.3 * noise)
        elif weight.ndim == 1:
            weight.add_(0.2 * noise)  # transformers has set it to 1, or to 0 where 1 is added
        elif "embed" in name or "wte" in name or "wpe" in name:
            weight.copy_(0.5 * noise)
        elif "lm_head" in name:
            weight.copy_(0.2 * noise)
        else:
            weight.copy_(1.5 * noise * weight.shape[-1] ** -0.5)


def _logits_of(model: Any, tokens: list[int], by_token: bool) -> torch.Tensor:
    """Float32 [len(tokens), vocab_size]."""
    if not by_token:
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float()
    cache, rows = None, []
    for token in tokens:
        output = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        rows.append(output.logits[0, -1].float())
    return torch.stack(rows)


def logits(*, directory: str, prompts: list[list[int]], rows: list[list[int]], output: str) -> None:
    """The file ``output`` gets, per prompt ``i``, "i": float32 [rows, vocab_size] at the positions that are wanted."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    arrays = {}
    for index, (prompt, wanted) in enumerate(zip(prompts, rows, strict=True)):
        answer = model(torch.tensor([prompt]), logits_to_keep=torch.tensor(wanted), use_cache=False)
        arrays[str(index)] = answer.logits[0].numpy()
    np.savez(output, **arrays)


def token_ids(*, directory: str, lines: list[str], add_special_tokens: bool) -> list[list[int]]:
    """The ids of each line."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    ids: list[list[int]] = tokenizer(lines, add_special_tokens=add_special_tokens).input_ids
    return ids


JOBS = {"checkpoint": checkpoint, "logits": logits, "token ids": token_ids}


@torch.inference_mode()
def main() -> None:
    logging.disable(logging.WARNING)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": JOBS[request.pop("job")](**request)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
