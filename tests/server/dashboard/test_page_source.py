"""The page as one file, and what it may do."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

from server.dashboard.page_source import PageSource


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "index.html").write_text(
        '<head>\n<link rel="stylesheet" href="page.css">\n</head>\n<script src="b.js"></script>\n'
        '<script src="a.js"></script>\n'
    )
    (tmp_path / "page.css").write_text("p { color: red }\n")
    (tmp_path / "a.js").write_text(r'"\1 after b"')
    (tmp_path / "b.js").write_text("first()")
    return tmp_path


def test_parts_stand_where_they_were_named_as_they_are(folder: Path) -> None:
    assert PageSource.read(folder).body.decode() == (
        '<head>\n<style>p { color: red }\n</style>\n</head>\n<script>first()</script>\n<script>"\\1 after b"</script>\n'
    )


def test_only_these_scripts_and_styles_may_run_and_only_this_server_be_asked(folder: Path) -> None:
    def source(part: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256((folder / part).read_bytes()).digest()).decode()}'"

    policy = dict(
        one.strip().split(" ", 1) for one in PageSource.read(folder).headers["content-security-policy"].split(";")
    )
    assert policy == {
        "default-src": "'none'",
        "script-src": f"{source('b.js')} {source('a.js')}",
        "style-src": source("page.css"),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


def test_a_page_without_scripts_may_run_none(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>")
    assert "script-src 'none'; style-src 'none'" in PageSource.read(tmp_path).headers["content-security-policy"]


def test_the_page_of_this_server_names_nothing_that_a_browser_would_load() -> None:
    text = PageSource.read().body.decode()
    for name in ("src", "href", "action", "srcset", "poster"):
        values = re.findall(
            rf'<[a-z]+ [^>]*\b{name}="([^"]*)"', re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
        )
        assert [value for value in values if not value.startswith(("#", "data:"))] == []


async def test_the_page_is_served_with_its_policy_and_needs_no_key(api) -> None:
    response = await api.http.get("/dashboard")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert {name: response.headers[name] for name in PageSource.read().headers} == PageSource.read().headers
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["cache-control"] == "no-store"
    assert response.content == PageSource.read().body
    head = await api.http.head("/dashboard")
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(response.content)))
