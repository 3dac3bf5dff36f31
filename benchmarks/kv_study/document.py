"""The document: a frame that people may edit, and between its markers what one run of the study found.

Tables, sentences and plots come from the same results. Invariant: files are written when all of it is there, each by a
rename, so that a run that ends early leaves the document as it was.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.kv_study.markdown import table
from benchmarks.kv_study.memory_section import memory_section
from benchmarks.kv_study.quality_section import quality_section
from benchmarks.kv_study.section import Section
from benchmarks.kv_study.study import Study
from benchmarks.kv_study.time_sections import growth_section, latency_section
from benchmarks.kv_study.upkeep_sections import leftovers_section, upkeep_section
from benchmarks.section import write_section

MARKER = "kv study"
IMAGES = "images"
FRAME = f"""# What a KV cache is for, measured

A language model attends to every token before the next one. Their keys and values can be computed anew for each token,
or once, and kept: space for time. This study measures what that buys, what it costs, and what a server must do so that
the space stays small, whole and given back, with the same parts that serve: scheduler, block manager, runner and
kernels, in one process. One command measures everything and writes this page and its plots:

    octavo study                      or python -m benchmarks.kv_study; needs pip install 'octavo[study]'
    octavo study path/to/model        another model
    octavo study --quick              in under a minute, printed only

What is between the markers comes from one run.

<!-- {MARKER}: begin -->
<!-- {MARKER}: end -->

## Sources

- Kwon et al., *Efficient memory management for large language model serving with PagedAttention*, 2023.
- Xiao et al., *Efficient streaming language models with attention sinks*, 2023.
- Beltagy et al., *Longformer: the long-document transformer*, 2020 (sliding windows).
- [How Octavo is built](architecture.md#pages), [what weights and pages cost in quality](quality.md).
"""


def sections(study: Study) -> list[Section]:
    """In the order of the document."""
    makers = (growth_section, latency_section, memory_section, quality_section, upkeep_section, leftovers_section)
    return [make(study) for make in makers]


def summary(parts: Sequence[Section]) -> str:
    """A row for each."""
    return table(["", "question", "answer"], [[*_title(one), one.answer] for one in parts], text_columns=3)


def render(study: Study) -> str:
    """What is written between the markers."""
    setting, parts = study.setting, sections(study)
    length = "" if setting.sizes.name == "full" else f" A {setting.sizes.name} run: too short for conclusions."
    facts = (
        f"{setting.model}, weights as they are served, {setting.page_dtype} pages of {setting.block_size} tokens, "
        f"{setting.backend}, {setting.threads} threads; {setting.conditions}. The study took "
        f"{setting.seconds / 60:.1f} minutes.{length}"
    )
    return "\n\n".join(["## In short", summary(parts), facts, *(one.render(IMAGES) for one in parts)])


def require_markers(path: Path) -> None:
    """Raise ValueError where a document could not take what a study finds: before a long run rather than after it."""
    if path.exists() and f"<!-- {MARKER}: begin -->" not in path.read_text(encoding="utf-8"):
        raise ValueError(f"{path} lacks the line <!-- {MARKER}: begin -->, and the one that ends what is written there")


def write_document(path: Path, text: str, plots: Mapping[str, bytes]) -> None:
    """Write ``text`` between the markers of ``path``, or of a new document, and the plots beside it.

    ValueError where the document lacks the markers.
    """
    draft = path.with_name(f".{path.name}.new")
    images = path.parent / IMAGES
    images.mkdir(parents=True, exist_ok=True)
    try:
        draft.write_text(path.read_text(encoding="utf-8") if path.exists() else FRAME, encoding="utf-8")
        write_section(draft, MARKER, text)
        for name, content in plots.items():
            _replace(images / name, content)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.new")
    draft.write_bytes(content)
    os.replace(draft, path)


def _title(section: Section) -> tuple[str, str]:
    """A title's letter, and the question."""
    letter, _, _ = section.title.partition(" ")
    return letter, section.question
