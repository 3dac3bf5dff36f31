"""A stand-in for the Hugging Face hub: repositories in memory, over the few routes that the real client asks.

Routes and headers: https://huggingface.co/docs/hub/api, and what `huggingface_hub` asks for.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass
class Repository:
    """Files by revision; ``token`` is what it asks for, where it is private or ``gated``."""

    revisions: Mapping[str, Mapping[str, bytes]]
    token: str | None = None
    gated: bool = False

    def commit(self, revision: str) -> str | None:
        """The commit that a branch or a commit names."""
        commits = {name: hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
                   for name, files in self.revisions.items()}  # fmt: skip
        return commits.get(revision) or next((one for one in commits.values() if one == revision), None)

    def files(self, revision: str) -> Mapping[str, bytes]:
        return next(files for name, files in self.revisions.items() if self.commit(revision) == self.commit(name))


@dataclass
class HubStandIn:
    """The running server. ``asked`` are the requests it got: method, path, and the range of bytes asked for."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)

    def __enter__(self) -> HubStandIn:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def downloaded(self) -> set[str]:
        """Names of the files whose content was asked for."""
        paths = [path for method, path, _ in self.asked if method == "GET" and "/resolve/" in path]
        return {path.split("/resolve/")[1].partition("/")[2] for path in paths}

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path)
        self.asked.append((request.command, path, request.headers.get("Range")))
        info = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
        content = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        name = (info or content or [None, ""])[1]
        repository = self.repositories.get(name)
        if repository is None:
            return _send(request, 404, headers={"X-Error-Code": "RepoNotFound"})
        allowed = repository.token is None or request.headers.get("Authorization") == f"Bearer {repository.token}"
        if not allowed and not (info and repository.gated):  # what is gated may be looked at
            code = "GatedRepo" if repository.gated else "RepoNotFound"
            return _send(request, 403 if repository.gated else 401, headers={"X-Error-Code": code})
        revision = (info[3] if info else content[2] if content else None) or "main"
        commit = repository.commit(revision)
        if commit is None:
            return _send(request, 404, headers={"X-Error-Code": "RevisionNotFound"})
        files = repository.files(revision)
        if info:
            names = [{"rfilename": file} for file in files]
            tree = [
                {"type": "file", "path": file, "size": len(data), "oid": _etag(data)} for file, data in files.items()
            ]
            found = tree if info[2] == "tree" else {"id": name, "sha": commit, "siblings": names}
            return _send(request, 200, json.dumps(found).encode(), {"Content-Type": "application/json"})
        assert content is not None
        data = files.get(content[3])
        if data is None:
            return _send(request, 404, headers={"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        headers = {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": commit}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
        if wanted is None:
            return _send(request, 200, data, headers)
        part = data[int(wanted[1]) : int(wanted[2]) + 1 if wanted[2] else None]
        headers["Content-Range"] = f"bytes {wanted[1]}-{int(wanted[1]) + len(part) - 1}/{len(data)}"
        return _send(request, 206, part, headers)


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def _send(
    request: BaseHTTPRequestHandler, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> None:
    request.send_response(status)
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)
