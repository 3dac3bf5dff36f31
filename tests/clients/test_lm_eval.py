"""Scores of lm-eval over a server are those it has over transformers: `make test-clients` installs and runs it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.clients.conftest import ROOT, ServedModel

INSTALLED = Path(os.environ["OCTAVO_TEST_CLIENTS"]).resolve()
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def test_lm_eval_gives_the_scores_of_transformers_with_the_same_weights(
    served: ServedModel, run_script: Callable[..., str], tiny_llama_dir: Path, tmp_path: Path
) -> None:
    printed = run_script(
        [str(INSTALLED / "bin" / "python"), str(ROOT / "tests" / "clients" / "python" / "use_lm_eval.py")],
        OCTAVO_CHECKPOINT=str(tiny_llama_dir),
        HF_HOME=str(tmp_path),
        **OFFLINE,
    )
    assert printed.splitlines()[-1] == "ok"
    served.server.wait_settled()
