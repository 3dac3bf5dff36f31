"""A real Prometheus scrapes a loaded server and answers every query of every dashboard and rule."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml

from tests.free_port import free_port
from tests.lora_adapters import write_adapter
from tests.server.monitoring.promql_names import selectors

if TYPE_CHECKING:
    from tests.e2e.conftest import Server

DEPLOY = Path(__file__).parents[2] / "deploy"
VARIABLES = {"$job": "octavo", "$instance": ".+", "$__rate_interval": "20s", "$__range": "1m"}
CLIENTS = 10

# Queries that have no answer from a healthy server under load, and why.
NOT_FROM_A_HEALTHY_SERVER = {
    "Until exhaustion": "nothing is foreseen while running requests end before memory does",
    "annotation Alerts": "no alert fires",
    "annotation Engine restarts": "no engine died",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus: install Debian's package prometheus"),
]


class Prometheus:
    """A Prometheus with the configuration of deploy/, but a scrape and an evaluation of all rules every second."""

    def __init__(self, folder: Path, server: Server, port: int) -> None:
        config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{server.port}"]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        (folder / "rules").mkdir()
        for path in (DEPLOY / "prometheus/rules").glob("*.yaml"):
            rules = re.sub(r"interval: \w+", "interval: 1s", path.read_text())
            (folder / "rules" / path.name).write_text(rules)
        self.log = folder / "log"
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder}/prometheus.yml",
                    f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=30)

    def is_ready(self) -> bool:
        return self.http.get("/status/buildinfo").status_code == 200

    def query(self, promql: str) -> list[float]:
        """The values of an instant query. Raises AssertionError where Prometheus does not understand it."""
        answer = self.http.post("/query", data={"query": promql}).json()
        assert answer["status"] == "success", f"{promql}: {answer}"
        return [float(sample["value"][1]) for sample in answer["data"]["result"]]

    def rules(self) -> list[dict[str, Any]]:
        groups = self.http.get("/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def scrapes(self) -> float:
        return sum(self.query("count_over_time(up[10m])"))

    def stop(self) -> None:
        self.http.close()
        self.process.terminate()
        self.process.wait(20)


@dataclass
class Load:
    """Clients that stream, leave in the middle, ask in vain and ask for too much, until they are told to stop."""

    server: Server
    over: Event = field(default_factory=Event)
    statuses: set[int] = field(default_factory=set)

    def run(self, number: int) -> None:
        turn = 0
        with httpx.Client(base_url=self.server.url, timeout=60) as http:
            while not self.over.is_set():
                turn += 1
                self._ask(http, leaves=(number + turn) % 5 == 0, seed=number % 3)
                if number == 0:
                    self.statuses.add(http.post("/v1/completions", json={"model": "tiny", "prompt": 5}).status_code)

    def _ask(self, http: httpx.Client, leaves: bool, seed: int) -> None:
        body = {
            "model": "tiny",
            "prompt": [10 + seed, *([5, 6, 7, 8] * 12)],
            "max_tokens": 100,
            "ignore_eos": True,
            "temperature": 0,
            "n": 1 + (seed == 2),
            "stream": True,
        }
        with http.stream("POST", "/v1/completions", json=body) as response:
            self.statuses.add(response.status_code)
            if response.status_code == 429:
                self.over.wait(0.2)
            for count, _ in enumerate(response.iter_lines()):
                if (leaves and count == 10) or self.over.is_set():
                    return


@pytest.fixture(scope="module")
def server(
    start_server: Callable[..., Server], tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    adapter = write_adapter(tmp_path_factory.mktemp("adapters") / "poet", tiny_llama_dir, seed=1)
    return start_server(
        str(tiny_llama_dir), "--served-model-name", "tiny", "--dtype", "float32",
        "--num-gpu-blocks-override", "40", "--max-model-len", "256", "--max-num-seqs", "8",
        "--max-queued-requests", "1", "--watermark-tokens", "0", "--speculative", "ngram",
        "--lora-modules", f"poet={adapter}",
    )  # fmt: skip


@pytest.fixture(scope="module")
def loaded(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has seen the server idle, and now sees it busy with all that can happen to a request."""
    prometheus = Prometheus(tmp_path_factory.mktemp("prometheus"), server, free_port())
    load = Load(server)
    try:
        server.wait_until(prometheus.is_ready, "watched")
        server.wait_until(lambda: prometheus.scrapes() >= 2, "scraped")
        with ThreadPoolExecutor(CLIENTS) as clients:
            running = [clients.submit(load.run, number) for number in range(CLIENTS)]
            try:
                server.wait_until(lambda: everything_happened(server, load), "busy", 60.0)
                seen = prometheus.scrapes()
                server.wait_until(lambda: prometheus.scrapes() >= seen + 3, "scraped while busy")
                yield prometheus
            finally:
                load.over.set()
        for client in running:
            client.result()
    finally:
        prometheus.stop()
    server.wait_settled()


def everything_happened(server: Server, load: Load) -> bool:
    return (
        load.statuses >= {200, 400, 429}
        and server.total("octavo_preemptions_total") > 0
        and server.total("octavo_prefix_cache_hits_tokens_total") > 0
        and server.metrics()['octavo_requests_total{outcome="abort"}'] > 0
        and server.metrics()['octavo_requests_total{outcome="length"}'] > 0
        and server.metrics()['octavo_refusals_total{reason="queue_full"}'] > 0
    )


def board_queries() -> list[tuple[str, str]]:
    """What every panel, annotation and variable asks, with the name of who asks it; variables replaced."""
    asked = []
    for path in sorted((DEPLOY / "grafana/dashboards").glob("*.json")):
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            asked += [(panel["title"], target["expr"]) for target in panel.get("targets", ())]
        asked += [(f"annotation {one['name']}", one["expr"]) for one in board["annotations"]["list"]]
    for variable, value in VARIABLES.items():
        asked = [(name, promql.replace(variable, value)) for name, promql in asked]
    return list(dict.fromkeys(asked))


def test_every_query_of_every_board_has_an_answer(loaded: Prometheus) -> None:
    unanswered = {}
    queries = board_queries()
    assert len(queries) > 100
    for name, promql in queries:
        values = loaded.query(promql)
        if not any(map(math.isfinite, values)) and name not in NOT_FROM_A_HEALTHY_SERVER:
            unanswered[f"{name}: {promql}"] = values
    assert unanswered == {}


def test_every_selector_of_every_board_and_rule_selects_something(loaded: Prometheus) -> None:
    asked = {promql for _, promql in board_queries()} | {rule["query"] for rule in loaded.rules()}
    selected = {selector for promql in asked for selector in selectors(promql) if not selector.startswith("ALERTS")}

    assert len(selected) > 100
    assert [selector for selector in sorted(selected) if not loaded.query(selector)] == []


def test_every_rule_is_evaluated_without_an_error_and_every_recorded_series_has_a_value(loaded: Prometheus) -> None:
    rules = loaded.rules()
    assert len(rules) > 40
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []

    recorded = {rule["name"] for rule in rules if rule["type"] == "recording"}
    assert {name for name in recorded if not any(map(math.isfinite, loaded.query(name)))} == set()


def test_variables_find_the_server(loaded: Prometheus, server: Server) -> None:
    for path in (DEPLOY / "grafana/dashboards").glob("*.json"):
        for variable in json.loads(path.read_text())["templating"]["list"][1:]:
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert match is not None
            selector, label = match[1].replace("$job", "octavo"), match[2]
            found = loaded.http.get(f"/label/{label}/values", params={"match[]": selector}).json()["data"]
            assert found == [{"job": "octavo", "instance": f"127.0.0.1:{server.port}"}[label]]


def test_the_boards_show_what_metrics_says(loaded: Prometheus, server: Server) -> None:
    assert loaded.query("sum(octavo_kv_pages)") == [40]
    assert loaded.query('octavo_kv_pages_capacity{job="octavo"}') == [server.metrics()["octavo_kv_pages_capacity"]]
    (tokens,) = loaded.query("max_over_time(octavo_generation_tokens_total[1m])")
    assert 0 < tokens <= server.metrics()["octavo_generation_tokens_total"]
