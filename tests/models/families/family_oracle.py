"""Tiny random checkpoints of transformers' own classes, with the logits and greedy tokens of these classes.

    python -I family_oracle.py REQUEST.json

The request is a list of jobs with ``directory``, ``model_type``, ``config``, ``seed``, ``prompts`` (lists of token ids)
and ``num_steps``. Each directory gets what `save_pretrained` writes, and ``expected.npz``: per prompt ``i`` float32
"prompt.i" [len(prompt), vocab_size], "tokens.i" [num_steps], what the model goes on with, and "steps.i"
[num_steps, vocab_size], the logits after each of these. Every step is a forward over all tokens, without a cache, but
where the job says ``by_token``: then tokens are fed one by one into a cache, for rules that depend on the length.
It must not see this repository: transformers tries to import an optional package called ``kernels``, as ours is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != REPOSITORY]
sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402


def draw_weights(model: torch.nn.Module, seed: int) -> None:
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


def logits_of(model: Any, tokens: list[int], by_token: bool) -> torch.Tensor:
    """Float32 [len(tokens), vocab_size]."""
    if not by_token:
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float()
    cache, rows = None, []
    for token in tokens:
        output = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        rows.append(output.logits[0, -1].float())
    return torch.stack(rows)


@torch.inference_mode()
def run(job: dict[str, Any]) -> None:
    config = AutoConfig.for_model(job["model_type"], **job["config"])
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    draw_weights(model, job["seed"])
    model.save_pretrained(job["directory"])
    arrays = {}
    for index, prompt in enumerate(job["prompts"]):
        tokens = list(prompt)
        logits = logits_of(model, tokens, job["by_token"])
        arrays[f"prompt.{index}"] = logits.numpy()
        steps = []
        for _ in range(job["num_steps"]):
            tokens.append(int(logits[-1].argmax()))
            logits = logits_of(model, tokens, job["by_token"])
            steps.append(logits[-1].numpy())
        arrays[f"tokens.{index}"] = np.array(tokens[len(prompt) :])
        arrays[f"steps.{index}"] = np.stack(steps)
    np.savez(Path(job["directory"]) / "expected.npz", **arrays)


if __name__ == "__main__":
    for one in json.loads(Path(sys.argv[1]).read_text()):
        run(one)
