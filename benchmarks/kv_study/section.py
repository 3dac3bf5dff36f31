"""A section of the document: question, method, plot, table, meaning, limits, and its row of the summary."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """``plot`` is the name of one of the figures, ``alt`` what it shows in words. ``answer`` goes into the summary."""

    title: str
    question: str
    answer: str
    method: str
    plot: str
    alt: str
    table: str
    meaning: str
    limits: str

    def render(self, images: str) -> str:
        """Markdown; ``images`` is the folder of the plots, as the document sees it."""
        return "\n\n".join(
            [
                f"## {self.title}",
                f"*{self.question}*",
                f"**How it was measured.** {self.method}",
                f"![{self.alt}]({images}/kv-study-{self.plot}.svg)",
                self.table,
                f"**What it means.** {self.meaning}",
                f"**Limits.** {self.limits}",
            ]
        )
