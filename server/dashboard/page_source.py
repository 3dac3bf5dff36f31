"""PageSource: the page of the page map as one file, with its style and its scripts inside, and what it may do.

Knows how index.html names its parts, not what they say. Invariant: the browser runs and applies what is in this file
and nothing else, and the page talks to its own server only.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

PAGE_FOLDER = Path(__file__).parent / "page"
STYLE_TAG = re.compile(r'<link rel="stylesheet" href="([a-z0-9_-]+\.css)">')
SCRIPT_TAG = re.compile(r'<script src="([a-z0-9_-]+\.js)"></script>')


@dataclass(frozen=True, slots=True)
class PageSource:
    """The bytes of the page, and the headers that go with them."""

    body: bytes
    headers: dict[str, str]

    @classmethod
    def read(cls, folder: Path = PAGE_FOLDER) -> PageSource:
        """Put the parts of ``folder``/index.html in their places."""
        styles, scripts = [], []

        def style(match: re.Match[str]) -> str:
            styles.append((folder / match[1]).read_text("utf-8"))
            return f"<style>{styles[-1]}</style>"

        def script(match: re.Match[str]) -> str:
            scripts.append((folder / match[1]).read_text("utf-8"))
            return f"<script>{scripts[-1]}</script>"

        text = (folder / "index.html").read_text("utf-8")
        text = SCRIPT_TAG.sub(script, STYLE_TAG.sub(style, text))
        policy = (
            f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {
            "content-security-policy": policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-store",
        }
        return cls(text.encode(), headers)


def _hashes(parts: list[str]) -> str:
    """The sources that a policy allows: these texts."""
    digests = (hashlib.sha256(part.encode()).digest() for part in parts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests) or "'none'"
