"""The Kubernetes manifests, built by kustomize and held against published schemas and against the program they run."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from engine.engine_process import CLOSE_TIMEOUT
from server.flags import add_engine_flags, add_model_flags, add_scheduling_flags, add_server_flags
from server.http.http_server import SHUTDOWN_SECONDS
from server.metrics.catalogue import CATALOGUE
from tests.deploy.dockerfile import Dockerfile
from tests.server.monitoring.promql_names import metric_names

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
OVERLAYS = ("overlays/cpu", "overlays/gpu", "overlays/shared-models")
BUILT = (*OVERLAYS, "monitoring", "keda", "hpa", "network-policy")
VERSIONS = ("1.28", "1.37")
EXTENSIONS = {  # where their models are, which take seconds to import
    "ScaledObject": "cloudcoil.models.keda.v1alpha1",
    "PodMonitor": "cloudcoil.models.prometheus_operator.v1",
}

Manifest = dict[str, Any]


@cache
def built(folder: str) -> tuple[Manifest, ...]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed (Debian: kubernetes-client)")
    finished = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER / folder)], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return tuple(yaml.safe_load_all(finished.stdout))


def of_kind(folder: str, kind: str) -> Manifest:
    [manifest] = [one for one in built(folder) if one["kind"] == kind]
    return manifest


def pod(folder: str) -> Manifest:
    spec: Manifest = of_kind(folder, "Deployment")["spec"]["template"]["spec"]
    return spec


def container(folder: str) -> Manifest:
    [only] = pod(folder)["containers"]
    return only


def flags(folder: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    for add in (add_model_flags, add_server_flags, add_engine_flags, add_scheduling_flags):
        add(parser)
    return parser.parse_args(container(folder)["args"])


def promql() -> dict[str, str]:
    """Every query of the autoscalers, by where it is."""
    triggers = {one["name"]: one["metadata"]["query"] for one in of_kind("keda", "ScaledObject")["spec"]["triggers"]}
    rules = yaml.safe_load((FOLDER / "hpa" / "adapter-rules.yaml").read_text())["rules"]["custom"]
    series = {f"series {one['seriesQuery']}": one["seriesQuery"] for one in rules}
    return triggers | series | {f"rule {one['seriesQuery']}": filled_in(one["metricsQuery"]) for one in rules}


def filled_in(template: str) -> str:
    """A query of the adapter, for one pod."""
    return template.replace("<<.LabelMatchers>>", 'namespace="default",pod="octavo-0"').replace("<<.GroupBy>>", "pod")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", BUILT)
def test_every_manifest_is_what_the_published_schema_says(folder: str, version: str) -> None:
    for manifest in built(folder):
        if manifest["kind"] not in EXTENSIONS:
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize(("folder", "kind"), [("keda", "ScaledObject"), ("monitoring", "PodMonitor")])
def test_every_field_of_an_extension_is_one_that_it_has(folder: str, kind: str) -> None:
    manifest = of_kind(folder, kind)

    read = getattr(import_module(EXTENSIONS[kind]), kind).model_validate(manifest)

    assert read.model_dump(mode="json", by_alias=True, exclude_unset=True) == manifest  # what it does not know is lost


@pytest.mark.parametrize("folder", OVERLAYS)
def test_the_arguments_are_ones_that_the_program_takes(folder: str) -> None:
    assert flags(folder).device == ("cuda" if folder == "overlays/gpu" else "auto")
    assert flags(folder).engine_silence_limit == 30


@pytest.mark.parametrize("folder", OVERLAYS)
def test_j04_a_pod_gets_the_time_that_draining_takes(folder: str) -> None:
    command = container(folder)["lifecycle"]["preStop"]["exec"]["command"]
    probe = container(folder)["readinessProbe"]

    assert command == ["sleep", "10"]
    needed = int(command[1]) + flags(folder).shutdown_timeout + SHUTDOWN_SECONDS + CLOSE_TIMEOUT
    assert pod(folder)["terminationGracePeriodSeconds"] > needed
    assert probe["periodSeconds"] * probe["failureThreshold"] < int(command[1])


@pytest.mark.parametrize(("folder", "load", "load_again"), [("overlays/cpu", 600, 120), ("overlays/gpu", 1800, 300)])
def test_probes_tell_loading_living_and_ready_apart(folder: str, load: int, load_again: int) -> None:
    startup, live, ready = (container(folder)[f"{name}Probe"] for name in ("startup", "liveness", "readiness"))

    assert startup["httpGet"] == live["httpGet"] == {"path": "/health", "port": "http"}
    assert ready["httpGet"] == {"path": "/ready", "port": "http"}
    assert startup["periodSeconds"] * startup["failureThreshold"] == load
    assert live["periodSeconds"] * live["failureThreshold"] == load_again


@pytest.mark.parametrize("folder", OVERLAYS)
def test_a_pod_keeps_to_the_restricted_standard_and_writes_to_volumes_only(folder: str) -> None:
    securities = pod(folder)["securityContext"], container(folder)["securityContext"]

    assert securities[0]["runAsNonRoot"] is True
    assert securities[0]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert securities[1] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    [volume] = [one.text for one in recipe().lineage("cpu") if one.name == "VOLUME"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container(folder)["volumeMounts"]}
    assert set(mounts) == {volume, "/tmp"}
    assert set(mounts.values()) == {one["name"] for one in pod(folder)["volumes"]}


def recipe() -> Dockerfile:
    return Dockerfile((FOLDER.parents[1] / "Dockerfile").read_text())


def test_whole_cores_and_the_memory_that_the_budget_follows_are_limited() -> None:
    cpu, gpu = (container(folder)["resources"] for folder in ("overlays/cpu", "overlays/gpu"))

    assert cpu["requests"] == cpu["limits"]  # the guaranteed class: cores of its own, and the last to be evicted
    assert int(cpu["limits"]["cpu"]) >= 1
    assert gpu["limits"]["nvidia.com/gpu"] == gpu["requests"]["nvidia.com/gpu"] == "1"


def test_keys_come_from_a_secret_that_need_not_be_there() -> None:
    references = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in container("overlays/cpu")["env"]}

    assert set(references) == {"OCTAVO_API_KEY", "OCTAVO_ADMIN_KEY", "HF_TOKEN"}
    assert all(one["name"] == "octavo-keys" and one["optional"] for one in references.values())


def test_everything_selects_the_pods_of_the_deployment_and_a_port_they_have() -> None:
    labels = of_kind("overlays/cpu", "Deployment")["spec"]["template"]["metadata"]["labels"]
    [port] = container("overlays/cpu")["ports"]
    selectors = [
        of_kind("overlays/cpu", "Service")["spec"]["selector"],
        of_kind("overlays/cpu", "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        of_kind("monitoring", "PodMonitor")["spec"]["selector"]["matchLabels"],
        of_kind("network-policy", "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]

    assert selectors == [labels] * len(selectors)
    assert of_kind("monitoring", "PodMonitor")["spec"]["podMetricsEndpoints"][0]["port"] == port["name"]
    assert of_kind("overlays/cpu", "Service")["spec"]["ports"][0]["targetPort"] == port["name"]
    assert port["containerPort"] == 8000


@pytest.mark.parametrize(("folder", "kind"), [("keda", "ScaledObject"), ("hpa", "HorizontalPodAutoscaler")])
def test_an_autoscaler_scales_the_deployment(folder: str, kind: str) -> None:
    assert of_kind(folder, kind)["spec"]["scaleTargetRef"]["name"] == "octavo"
    assert of_kind("overlays/cpu", "Deployment")["metadata"]["name"] == "octavo"
    assert "replicas" not in of_kind("overlays/cpu", "Deployment")["spec"]  # applying it again would undo the scaling


def test_the_autoscalers_ask_for_names_and_labels_that_metrics_have() -> None:
    labels = {spec.name: set(spec.labels) for spec in CATALOGUE}
    added = {"namespace", "pod"}  # by Prometheus, for what it scrapes in a cluster
    selected = {name for query in promql().values() for name in metric_names(query)}

    assert selected == {"octavo_queued_tokens", "octavo_requests_waiting", "octavo_kv_usage_ratio"}
    assert selected <= set(labels)
    for where, query in promql().items():
        found = re.findall(r"(octavo_\w+)\{([^}]*)\}", query)
        assert found, where
        for name, matchers in found:
            assert set(re.findall(r"(\w+)!?=", matchers)) <= labels[name] | added, where


@pytest.mark.parametrize("trigger", ["queued-tokens", "waiting-for-pages", "kv-usage"])
def test_a_replica_that_left_is_no_reason_for_another_one(trigger: str, tmp_path: Path) -> None:
    query = promql()[trigger]
    [series] = set(re.findall(r"octavo_\w+\{[^}]*(?=\})", query))
    replicas = [
        {"series": f'{series},pod="before"}}', "values": "2x20 stale"},  # as a rollout leaves it, at 05:15
        {"series": f'{series},pod="after"}}', "values": "_x16 2x20"},
    ]
    asked = [
        {"expr": query, "eval_time": "4m30s", "exp_samples": [{"value": 4}]},
        {"expr": query, "eval_time": "5m30s", "exp_samples": [{"value": 2}]},
    ]

    assert_answers(tmp_path, {"interval": "15s", "input_series": replicas, "promql_expr_test": asked})


def assert_answers(folder: Path, test: dict[str, object]) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "15s", "tests": [test]}))
    told = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr


def test_prometheus_can_read_every_query_of_the_autoscalers(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    rules = [{"record": f"query_{number}", "expr": query} for number, query in enumerate(promql().values())]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))

    checked = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_adapter_makes_every_metric_that_the_autoscaler_asks_for() -> None:
    rules = yaml.safe_load((FOLDER / "hpa" / "adapter-rules.yaml").read_text())["rules"]["custom"]
    made = {one.get("name", {}).get("as", one["seriesQuery"].partition("{")[0]) for one in rules}
    wanted = of_kind("hpa", "HorizontalPodAutoscaler")["spec"]["metrics"]

    assert {one["pods"]["metric"]["name"] for one in wanted} == made
