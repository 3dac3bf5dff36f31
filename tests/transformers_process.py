"""TransformersProcess: the tests' end of `transformers_oracle.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.job_process import JobProcess

PROGRAM = Path(__file__).with_name("transformers_oracle.py")


class TransformersProcess(JobProcess):
    """Asks transformers, in a process that sees nothing of this repository."""

    def __init__(self, directory: Path) -> None:
        super().__init__([sys.executable, "-I", str(PROGRAM)], directory, cwd=directory)
