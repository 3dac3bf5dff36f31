"""Proxy: nginx or Caddy, run with the configuration that deploy/ ships, before a server on another port."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PATIENCE = 30.0
NGINX = """
daemon off;
master_process off;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    {compression}
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/octavo.conf;
}}
"""
COMPRESSION = "gzip on; gzip_types *; gzip_min_length 0;"  # as an http block may have it that includes ours
CADDY = "{\n\tadmin off\n\tauto_https off\n}\n"


def replaced_once(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


def program(name: str) -> str:
    """Its path; skips the test where there is none."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


class Proxy:
    """Listens on ``port`` until closed; raises AssertionError with what it printed if it does not come up."""

    def __init__(self, name: str, folder: Path, port: int, upstream: int, *, compressing: bool = False) -> None:
        self.port = port
        command = self._nginx(folder, upstream, compressing) if name == "nginx" else self._caddy(folder, upstream)
        self._log = folder / "log"
        with self._log.open("w") as output:
            environment = {
                **os.environ,
                "HOME": str(folder),
                "XDG_DATA_HOME": str(folder),
                "XDG_CONFIG_HOME": str(folder),
            }
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            self._until_listening()
        except BaseException:
            self.close()
            raise

    def request(self, **body: object) -> socket.socket:
        """A completion asked for over a bare socket, whose answer is read piece by piece."""
        payload = json.dumps({"model": "tiny", "temperature": 0, "ignore_eos": True, **body}).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + payload)
        return connection

    def connections_to(self, port: int) -> set[str]:
        """Its own addresses of the connections to ``port`` that are open now."""
        files = (os.readlink(file) for file in Path(f"/proc/{self._process.pid}/fd").iterdir())
        inodes = {file[len("socket:[") : -1] for file in files if file.startswith("socket:[")}
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        remote, established = f"0100007F:{port:04X}", "01"
        return {line[1] for line in lines if line[2:4] == [remote, established] and line[9] in inodes}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _nginx(self, folder: Path, upstream: int, compressing: bool) -> list[str]:
        shipped = (DEPLOY / "nginx" / "octavo.conf").read_text()
        shipped = replaced_once(shipped, "server 127.0.0.1:8000;", f"server 127.0.0.1:{upstream};")
        shipped = replaced_once(shipped, "listen 80;", f"listen 127.0.0.1:{self.port};")
        (folder / "octavo.conf").write_text(shipped)
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, compression=COMPRESSION if compressing else ""))
        return [program("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]

    def _caddy(self, folder: Path, upstream: int) -> list[str]:
        shipped = (DEPLOY / "caddy" / "Caddyfile").read_text()
        shipped = replaced_once(shipped, "127.0.0.1:8000", f"127.0.0.1:{upstream}")
        shipped = replaced_once(shipped, "\n:80 {", f"\nhttp://127.0.0.1:{self.port}, http://x:{self.port} {{")
        (folder / "Caddyfile").write_text(CADDY + shipped)
        return [program("caddy"), "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]

    def _until_listening(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except ConnectionRefusedError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline, self._log.read_text()
                time.sleep(0.02)
