"""lm-eval, once over a server and once over transformers with the same weights: the same scores, item by item."""

from __future__ import annotations

import math
import os
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

CHECKPOINT = os.environ["OCTAVO_CHECKPOINT"]
TASKS = Path(__file__).resolve().parents[1] / "lm_eval"
SCORES = {
    "octavo_choices": ["acc,none", "acc_norm,none"],
    "octavo_text": ["byte_perplexity,none", "bits_per_byte,none"],
}

os.chdir(TASKS)  # where the tasks look for their data
os.environ["OPENAI_API_KEY"] = os.environ["OCTAVO_KEY"]


def evaluate(model: str, batch_size: int, model_args: dict[str, object]) -> dict[str, object]:
    results = lm_eval.simple_evaluate(
        model=model,
        model_args=model_args,
        tasks=list(SCORES),
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        batch_size=batch_size,
        device="cpu",
        bootstrap_iters=0,
    )
    assert results is not None
    return results


def loglikelihoods(results: dict, task: str) -> list[tuple[float, bool | None]]:
    """Of every request of a task: its log likelihood, and whether it is what greedy decoding would give."""
    samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    answers = [answer for sample in samples for answer in sample["filtered_resps"]]
    return [tuple(answer) if isinstance(answer, (tuple, list)) else (answer, None) for answer in answers]


# By default transformers' tokens begin with BOS here and those of local-completions do not.
bare, begun = (
    evaluate("hf", 1, {"pretrained": CHECKPOINT, "dtype": "float32", "add_bos_token": bos}) for bos in (False, True)
)
served = {"base_url": f"{os.environ['OCTAVO_URL']}/completions", "model": os.environ["OCTAVO_MODEL"], "max_retries": 1}
own = {"tokenizer_backend": "huggingface", "tokenizer": CHECKPOINT}
ways = {
    "the server's tokenizer, one by one": (bare, 1, {"auth_token": os.environ["OCTAVO_KEY"]}),
    "its own tokenizer, batches of 8": (bare, 8, own),
    "BOS first, 4 at once": (begun, 1, own | {"add_bos_token": True, "num_concurrent": 4}),
}
for way, (oracle, batch_size, model_args) in ways.items():
    results = evaluate("local-completions", batch_size, served | model_args)
    for task, names in SCORES.items():
        expected = loglikelihoods(oracle, task)
        found = loglikelihoods(results, task)
        worst = max(abs(one - other) for (one, _), (other, _) in zip(found, expected, strict=True))
        print(f"{way}: {task} {len(found)} log likelihoods, at most {worst:.1e} apart")
        assert worst < 1e-4
        assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
        for name in names:
            score, wanted = results["results"][task][name], oracle["results"][task][name]
            print(f"{way}: {task} {name} {score!r} for {wanted!r}")
            assert math.isclose(score, wanted, rel_tol=1e-6)

for oracle in (bare, begun):
    assert 0 < oracle["results"]["octavo_choices"]["acc,none"] < 1
assert {greedy for _, greedy in loglikelihoods(bare, "octavo_choices")} == {True, False}
print("ok")
