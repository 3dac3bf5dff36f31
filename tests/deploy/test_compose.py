"""compose.yaml and its override for GPUs, held against the schema of compose files and against what they refer to."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from engine.engine_process import CLOSE_TIMEOUT
from server.flags import add_model_flags, add_server_flags
from server.http.http_server import SHUTDOWN_SECONDS
from tests.deploy.dockerfile import Dockerfile

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = ("compose.yaml", "compose.cuda.yaml")


def read(file: str) -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / file).read_text())


SERVICES = read("compose.yaml")["services"]


def with_defaults(text: str) -> str:
    """``text`` as it is where no variable is set."""
    return re.sub(r"\$\{\w+(?::-([^}]*))?\}", lambda match: match[1] or "", text)


def seconds(text: str) -> int:
    match = re.fullmatch(r"(\d+)s", text)
    assert match
    return int(match[1])


@pytest.mark.parametrize("file", FILES)
def test_a_compose_file_is_what_the_published_schema_says(file: str) -> None:
    vendored = resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"

    jsonschema.validate(read(file), json.loads(vendored.read_text()))


@pytest.mark.parametrize("file", FILES)
def test_octavo_is_built_from_a_target_of_the_dockerfile(file: str) -> None:
    octavo = read(file)["services"]["octavo"]
    targets = Dockerfile((DEPLOY.parent / "Dockerfile").read_text()).stages

    assert octavo["build"]["target"] in targets
    assert octavo["image"] == f"octavo:{octavo['build']['target']}"
    assert (DEPLOY / SERVICES["octavo"]["build"]["context"] / "Dockerfile").is_file()


def test_the_command_is_flags_that_the_program_takes() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_model_flags(parser)
    add_server_flags(parser)

    parsed = parser.parse_args(shlex.split(with_defaults(SERVICES["octavo"]["command"])))

    assert parsed.model is None
    needed = parsed.shutdown_timeout + SHUTDOWN_SECONDS + CLOSE_TIMEOUT
    assert seconds(SERVICES["octavo"]["stop_grace_period"]) > needed


def test_threads_follow_a_limit_of_whole_cores() -> None:
    assert with_defaults(SERVICES["octavo"]["cpus"]) == "2"
    assert with_defaults(SERVICES["octavo"]["mem_limit"]) == "8g"


def test_every_image_has_an_exact_version_and_every_service_a_health_check() -> None:
    for name, service in SERVICES.items():
        if name != "octavo":  # whose image is built here, with a check of its own
            assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", service["image"]), name
            assert service["healthcheck"]["test"][0] == "CMD"


def test_nothing_is_reachable_from_other_machines_unless_asked_for() -> None:
    published = [with_defaults(port) for service in SERVICES.values() for port in service["ports"]]

    assert published == ["127.0.0.1:8000:8000", "127.0.0.1:9090:9090", "127.0.0.1:3000:3000"]


def test_every_mounted_folder_exists_and_every_named_volume_is_declared() -> None:
    volumes = [with_defaults(volume).split(":") for service in SERVICES.values() for volume in service["volumes"]]
    folders = {source for source, *_ in volumes if source.startswith(".")}

    assert {source for source, *_ in volumes} - folders == set(read("compose.yaml")["volumes"])
    assert folders == {"./prometheus", "./grafana/provisioning", "./grafana/dashboards"}
    assert all((DEPLOY / folder).is_dir() for folder in folders)


def test_prometheus_scrapes_the_service_by_its_name_and_port() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]

    assert "octavo:8000" in [target for job in scraped for one in job["static_configs"] for target in one["targets"]]


def test_grafana_finds_its_data_source_and_its_dashboards_where_they_are_mounted() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    [source] = yaml.safe_load(next(provisioning.glob("datasources/*.yaml")).read_text())["datasources"]
    [provider] = yaml.safe_load(next(provisioning.glob("dashboards/*.yaml")).read_text())["providers"]

    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in SERVICES
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]
    assert any((DEPLOY / "grafana" / "dashboards").glob("*.json"))


def test_the_root_file_system_is_read_only_where_octavo_runs() -> None:
    octavo = SERVICES["octavo"]

    assert octavo["read_only"] is True
    assert octavo["tmpfs"] == ["/tmp"]
    assert octavo["cap_drop"] == ["ALL"]
    assert "octavo-cache:/var/cache/octavo" in octavo["volumes"]
