"""Models of the hub, by the real client against a stand-in of the hub: what is downloaded, and what is said if not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.checkpoint import Checkpoint, CheckpointFormat, resolve_checkpoint
from models.description import describe
from models.errors import CheckpointError
from models.hub import HubId
from models.lora_source import find_adapter
from tests.models.hub_stand_in import HubStandIn, Repository

ROOT = Path(__file__).resolve().parents[2]
GGUF = b"GGUF" + bytes(60)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubStandIn]:
    """An empty hub, and an empty cache."""
    with HubStandIn() as running:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", running.url)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
                            running.url + "/{repo_id}/resolve/{revision}/{filename}")  # fmt: skip
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield running


def add(hub: HubStandIn, *names: str, repository: str = "org/model", **contents: str) -> None:
    """A repository of files with these names."""
    files = {
        name: GGUF + name.encode() if name.endswith(".gguf") else f'{{"name": "{name}"}}'.encode() for name in names
    }
    hub.repositories[repository] = Repository({"main": files | {k: v.encode() for k, v in contents.items()}})


def refusal(model: str, **choices: object) -> str:
    with pytest.raises(CheckpointError) as caught:
        resolve_checkpoint(model, **choices)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/model", HubId("org/model", None)),
        ("org/model:Q4_K_M", HubId("org/model", "Q4_K_M")),
        ("org/model/m-Q8_0.gguf", HubId("org/model", "m-Q8_0.gguf")),
        ("org/model/Q8_0/m.gguf", HubId("org/model", "Q8_0/m.gguf")),
        ("org/model/../m.gguf", None),
        ("org/model/config.json", None),
        ("directory/model.gguf", None),
        ("/org/model", None),
        ("model", None),
        ("org/model:", None),
    ],
)
def test_what_is_a_hub_id(text: str, expected: HubId | None) -> None:
    assert HubId.parse(text) == expected


def test_a_model_is_downloaded_without_what_is_not_needed_and_found_again_offline(hub: HubStandIn) -> None:
    index = json.dumps(
        {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    )
    needed = {
        *("config.json", "tokenizer.json", "merges.txt", "additional_chat_templates/tool_use.jinja"),
        *("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
    }
    others = {
        "pytorch_model.bin",
        "consolidated.safetensors",
        "onnx/model.onnx",
        "onnx/tokenizer.json",
        "README.md",
        "model-00003.safetensors",
    }
    add(hub, *needed, *others, **{"model.safetensors.index.json": index})

    checkpoint = resolve_checkpoint("org/model")

    assert (checkpoint.name, checkpoint.format) == ("org/model", CheckpointFormat.SAFETENSORS)
    assert hub.downloaded() == needed | {"model.safetensors.index.json"}
    assert [path.name for path in checkpoint.weight_files()] == [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    hub.repositories.clear()
    hub.asked.clear()
    assert resolve_checkpoint("org/model", offline=True) == checkpoint
    assert hub.asked == []


def test_an_adapter_is_downloaded_without_what_is_not_needed_and_never_as_a_pickle(hub: HubStandIn) -> None:
    needed = {"adapter_config.json", "adapter_model.safetensors"}
    add(hub, *needed, "README.md", "optimizer.pt", "tokenizer.json")
    directory = find_adapter("org/model")
    assert hub.downloaded() == needed
    assert {file.name for file in directory.iterdir()} == needed
    add(hub, "adapter_config.json", "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"^org/model has only adapter_model\.bin, a pickle, which can run code"):
        find_adapter("org/model")
    add(hub, "config.json", "model.safetensors")
    with pytest.raises(CheckpointError, match=r"^org/model has no adapter_config\.json: it is no adapter"):
        find_adapter("org/model")


def test_a_revision_is_what_is_downloaded(hub: HubStandIn) -> None:
    versions = {name: {"config.json": name.encode(), "model.safetensors": b""} for name in ("main", "v2")}
    hub.repositories["org/model"] = Repository(versions)
    commit = hub.repositories["org/model"].commit("v2")

    for revision, content in (("v2", "v2"), (commit, "v2"), (None, "main")):
        path = resolve_checkpoint("org/model", revision=revision).path
        assert (path / "config.json").read_text() == content
    assert (resolve_checkpoint("org/model", revision="v2", offline=True).path / "config.json").read_text() == "v2"
    assert refusal("org/model", revision="v3") == (
        "org/model at revision v3 is not on the hub: check the revision, a branch, tag or full commit"
    )


def test_a_repository_that_is_not_there_or_not_for_everyone_is_told_apart(
    hub: HubStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"main": {"config.json": b"{}", "model.safetensors": b""}}
    hub.repositories["org/private"] = Repository(files, token="secret")
    hub.repositories["org/gated"] = Repository(files, token="secret", gated=True)

    unknown = "is neither a local path nor on the hub, or it is private: check the name, or set HF_TOKEN"
    assert refusal("org/nothing") == f"org/nothing {unknown}"
    assert refusal("org/private") == f"org/private {unknown}"
    assert refusal("org/gated").startswith("org/gated is gated: accept its terms on the hub, and set HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert resolve_checkpoint("org/private").name == "org/private"
    assert resolve_checkpoint("org/gated").name == "org/gated"


QUANTISED = ("m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf", "Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf")


@pytest.mark.parametrize(
    ("model", "files"),
    [
        ("org/model:Q4_K_M", ["m-Q4_K_M.gguf"]),
        ("org/model:q4_k_m", ["m-Q4_K_M.gguf"]),
        ("org/model:UD-Q4_K_M", ["m-UD-Q4_K_M.gguf"]),
        ("org/model:Q8_0", ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"]),
        ("org/model/m-UD-Q4_K_M.gguf", ["m-UD-Q4_K_M.gguf"]),
        ("org/model/Q8_0/m-Q8_0-00002-of-00002.gguf",
         ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"]),
    ],
)  # fmt: skip
def test_one_gguf_model_of_several_is_downloaded(hub: HubStandIn, model: str, files: list[str]) -> None:
    add(hub, *QUANTISED, "mmproj-F16.gguf", "config.json")

    checkpoint = resolve_checkpoint(model)

    assert checkpoint == Checkpoint(model, checkpoint.path, CheckpointFormat.GGUF)
    assert checkpoint.path.read_bytes() == GGUF + files[0].encode()
    assert hub.downloaded() == set(files)
    assert [path.name for path in checkpoint.weight_files()] == [Path(file).name for file in files]


def test_several_gguf_models_and_no_choice_are_listed(hub: HubStandIn) -> None:
    add(hub, *QUANTISED, "mmproj-F16.gguf")
    models = "Q8_0/m-Q8_0-00001-of-00002.gguf, m-Q4_K_M.gguf, m-UD-Q4_K_M.gguf"
    assert refusal("org/model") == f"org/model holds 3 GGUF models, name one of them: {models}"
    assert refusal("org/model:IQ4_XS") == f"org/model has no GGUF model IQ4_XS; GGUF models there: {models}"
    add(hub, "m-Q8_0.gguf", "n-Q8_0.gguf")
    assert refusal("org/model:Q8_0") == "org/model has 2 GGUF models Q8_0, name one file: m-Q8_0.gguf, n-Q8_0.gguf"
    assert hub.downloaded() == set()


def test_the_only_gguf_model_of_a_repository_needs_no_choice(hub: HubStandIn) -> None:
    add(hub, "m-Q8_0.gguf", "mmproj-m.gguf", "config.json", "README.md")
    assert resolve_checkpoint("org/model").path.name == "m-Q8_0.gguf"
    assert hub.downloaded() == {"m-Q8_0.gguf"}


def test_what_cannot_be_served_is_not_downloaded(hub: HubStandIn) -> None:
    add(hub, "config.json", "pytorch_model.bin", "training_args.bin")
    assert refusal("org/model").startswith(
        "org/model holds only pickled weights (pytorch_model.bin), which can run code"
    )
    add(hub, "config.json", "params.json", "consolidated.safetensors")
    assert refusal("org/model").startswith("org/model holds its weights in Mistral's own layout alone")
    add(hub, "m-00001-of-00003.gguf", "m-00003-of-00003.gguf")
    assert refusal("org/model") == "org/model lacks m-00002-of-00003.gguf of the 3 shards of m"
    add(
        hub,
        "config.json",
        "model-1.safetensors",
        **{"model.safetensors.index.json": '{"weight_map": {"a": "b.safetensors"}}'},
    )
    assert refusal("org/model") == "org/model lacks b.safetensors, which its model.safetensors.index.json names"
    assert hub.downloaded() == {"model.safetensors.index.json"}


def test_an_adapter_names_the_model_it_was_made_for(hub: HubStandIn) -> None:
    config = '{"base_model_name_or_path": "org/base"}'
    add(hub, "adapter_model.safetensors", **{"adapter_config.json": config})
    assert refusal("org/model") == (
        "org/model holds a LoRA adapter and no model: serve the model that it was made for, org/base, and load the "
        "adapter into it"
    )
    assert hub.downloaded() == {"adapter_config.json"}


def test_offline_what_is_missing_is_named(hub: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "hub"
    assert refusal("org/model", offline=True) == (
        f"org/model is not in the cache ({cache}), and --offline allows no download"
    )
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    add(
        hub,
        "config.json",
        *shards,
        **{
            "model.safetensors.index.json": json.dumps(
                {"weight_map": dict.fromkeys("ab", shards[0]) | {"c": shards[1]}}
            )
        },
    )
    path = resolve_checkpoint("org/model").path
    (path / shards[1]).unlink()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub.asked.clear()
    assert refusal("org/model") == (
        f"{shards[1]} of org/model is not in the cache ({cache}), and HF_HUB_OFFLINE allows no download"
    )
    assert refusal("org/model", revision="v1") == (
        f"org/model at revision v1 is not in the cache ({cache}), and HF_HUB_OFFLINE allows no download"
    )
    assert hub.asked == []


def test_a_hub_that_cannot_be_reached_leaves_the_cache(
    hub: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(hub, "config.json", "model.safetensors")
    checkpoint = resolve_checkpoint("org/model")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert resolve_checkpoint("org/model") == checkpoint
    assert refusal("org/other") == (
        f"org/other is not a local path, is not in the cache ({tmp_path / 'hub'}), and the hub cannot be reached to "
        "download it"
    )


def test_the_environment_says_where_the_hub_and_its_cache_are(hub: HubStandIn, tmp_path: Path) -> None:
    add(hub, "config.json", "model.safetensors")
    home = tmp_path / "home"

    def resolve(**environment: str) -> subprocess.CompletedProcess[str]:
        program = "import sys; from models.checkpoint import resolve_checkpoint as r; print(r(sys.argv[1]).path)"
        env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        return subprocess.run(
            [sys.executable, "-c", program, "org/model"], cwd=ROOT, capture_output=True, text=True, check=False,
            env={**env, "HF_HOME": str(home), **environment},
        )  # fmt: skip

    path = Path(resolve(HF_ENDPOINT=hub.url).stdout.strip())
    assert path.is_relative_to(home / "hub" / "models--org--model")
    assert resolve(HF_HUB_OFFLINE="1").stdout.strip() == str(path)
    elsewhere = resolve(HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "other")).stderr
    assert f"is not in the cache ({tmp_path / 'other' / 'hub'}), and HF_HUB_OFFLINE allows no download" in elsewhere


def test_a_model_is_described_by_headers_alone(hub: HubStandIn, tiny_llama_dir: Path) -> None:
    files = {path.name: path.read_bytes() for path in tiny_llama_dir.iterdir()}
    files |= {"chat_template.jinja": b"{{ messages }}", "model.safetensors": files["model.safetensors"] + bytes(10**6)}
    hub.repositories["org/model"] = Repository({"main": files})

    found = describe("org/model")

    expected = describe(str(tiny_llama_dir))
    assert (found.name, found.spec, found.weights) == ("org/model", expected.spec, expected.weights)
    assert (found.tokenizer, found.has_chat_template) == ("tokenizer.json", True)
    assert "tokenizer.json" not in hub.downloaded()
    ranges = [span for method, path, span in hub.asked if method == "GET" and path.endswith("model.safetensors")]
    assert ranges == ["bytes=0-100000"]
    hub.repositories.clear()
    with pytest.raises(CheckpointError, match="org/model is neither a local path nor on the hub"):
        describe("org/model")


def test_a_gguf_model_of_the_hub_is_described_once_it_is_here(hub: HubStandIn) -> None:
    add(hub, "m-Q8_0.gguf")
    with pytest.raises(CheckpointError, match=r"org/model is a GGUF model that is not in the cache"):
        describe("org/model")
    assert hub.downloaded() == set()
