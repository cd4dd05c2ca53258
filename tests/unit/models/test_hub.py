"""Downloads by the real hub client, from a server in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from pagemesh.models.hub import DownloadLog
from tests.unit.gguf.small_file import write_small
from tests.unit.models.fake_hub import MAIN, OLDER, FakeHub, Repository, serving
from tests.unit.models.model_folder import write_sharded_model

pytestmark = pytest.mark.costly

# A process of its own, because the hub's client reads its variables once, on import.
PROGRAM = """
import json, sys
from pagemesh.config import HubConfig
from pagemesh.errors import ConfigError
from pagemesh.models.resolve import resolve_model_path
model, need, hub = json.loads(sys.argv[1])
try:
    folder = resolve_model_path(model, HubConfig(**hub), need=need)
except ConfigError as error:
    print(error.message)
else:
    print(folder)
"""
TOKENIZER = {"config.json": b"{}", "tokenizer.json": b"{} ", "tokenizer_config.json": b" {}"}
TEMPLATES = {"additional_chat_templates/rag.jinja": b"r", "chat_template.json": b"{ }"}
WEIGHTS = {"model.safetensors": b"weights"}
PACKED = (
    "small-Q4_K_M.gguf",
    "mmproj-small-Q4_K_M.gguf",
    "one-Q8_0.gguf",
    "two-Q8_0.gguf",
    "large/small-F16-00001-of-00002.gguf",
    "large/small-F16-00002-of-00002.gguf",
)
OTHERS = {"README.md": b"read me", "pytorch_model.bin": b"pickle", "onnx/model.onnx": b"onnx"}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    (tmp_path / "shards").mkdir()
    folder = write_sharded_model(tmp_path / "shards")
    sharded = {path.name: path.read_bytes() for path in folder.iterdir()}
    packed = write_small(tmp_path / "small.gguf").read_bytes()
    older = TOKENIZER | {"model.safetensors": b"older weights"}
    repositories = {
        "org/plain": Repository({MAIN: TOKENIZER | TEMPLATES | WEIGHTS | OTHERS, OLDER: older}),
        "org/sharded": Repository({MAIN: sharded}),
        "org/pickled": Repository({MAIN: TOKENIZER | OTHERS}),
        "org/empty": Repository({MAIN: TOKENIZER}),
        "org/packed": Repository({MAIN: TOKENIZER | dict.fromkeys(PACKED, packed)}),
        "org/file": Repository({MAIN: {"small.gguf": packed}}),
        "org/gated": Repository({MAIN: TOKENIZER | WEIGHTS}, token="hf_right"),
    }
    with serving(FakeHub(repositories)) as hub:
        yield hub


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def ask(
    endpoint: str,
    home: Path,
    model: str,
    need: str = "model",
    *,
    revision: str | None = None,
    download_dir: Path | None = None,
    **environment: str,
) -> str:
    """What resolving prints: the folder, or why there is none."""
    settings = {"revision": revision, "download_dir": download_dir and str(download_dir)}
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([model, need, settings])],
        env=os.environ
        | {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint, "HF_HOME": str(home)}
        | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.splitlines()[-1]


def names_in(folder: str) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())


def test_a_model_is_fetched_once_and_without_anything_else(hub: FakeHub, home: Path) -> None:
    folder = ask(hub.endpoint, home, "org/plain")
    assert names_in(folder) == sorted([*TOKENIZER, *TEMPLATES, *WEIGHTS])
    assert (Path(folder) / "model.safetensors").read_bytes() == b"weights"
    assert Path(folder).is_relative_to(home)
    assert sorted(hub.fetched) == sorted([*TOKENIZER, *TEMPLATES, *WEIGHTS])
    assert ask(hub.endpoint, home, "org/plain") == folder
    assert len(hub.fetched) == 6


def test_routers_fetch_the_tokenizer_and_plans_the_config_alone(hub: FakeHub, home: Path) -> None:
    ask(hub.endpoint, home, "org/plain", "config")
    assert hub.fetched == ["config.json"]
    folder = ask(hub.endpoint, home, "org/plain", "tokenizer")
    assert names_in(folder) == sorted([*TOKENIZER, *TEMPLATES])


def test_all_shards_are_fetched(hub: FakeHub, home: Path) -> None:
    assert names_in(ask(hub.endpoint, home, "org/sharded")) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]


@pytest.mark.parametrize("revision", ["v1", OLDER])
def test_a_revision_pins_the_files(hub: FakeHub, home: Path, revision: str) -> None:
    folder = ask(hub.endpoint, home, "org/plain", revision=revision)
    assert (Path(folder) / "model.safetensors").read_bytes() == b"older weights"


def test_downloads_go_where_they_are_told_to(hub: FakeHub, home: Path, tmp_path: Path) -> None:
    folder = ask(hub.endpoint, home, "org/plain", download_dir=tmp_path / "models")
    assert Path(folder).is_relative_to(tmp_path / "models")


def test_what_was_fetched_is_there_without_the_hub(hub: FakeHub, home: Path) -> None:
    folder = ask(hub.endpoint, home, "org/plain", "tokenizer")
    nowhere = "http://127.0.0.1:1"
    assert ask(nowhere, home, "org/plain", "tokenizer") == folder
    assert ask(nowhere, home, "org/plain", "tokenizer", HF_HUB_OFFLINE="1") == folder
    assert ask(nowhere, home, "org/plain", HF_HUB_OFFLINE="1") == (
        "--model is 'org/plain', but there is no such folder, and it is not (or not all) in the hub's "
        "cache, while HF_HUB_OFFLINE forbids to download it"
    )
    assert ask(nowhere, home, "org/sharded") == (
        "--model is 'org/sharded', but there is no such folder, and the Hugging Face hub cannot be "
        "reached and the model is not in its cache"
    )


def test_a_token_opens_a_gated_model(hub: FakeHub, home: Path) -> None:
    folder = ask(hub.endpoint, home, "org/gated", HF_TOKEN="hf_right")
    assert names_in(folder) == sorted([*TOKENIZER, *WEIGHTS])
    again = ask(hub.endpoint, home, "org/gated", HF_TOKEN="", HUGGING_FACE_HUB_TOKEN="hf_right")
    assert again == folder


@pytest.mark.parametrize(
    ("token", "older", "words"),
    [
        ("", "", "no token (HF_TOKEN and HUGGING_FACE_HUB_TOKEN are unset)"),
        ("hf_wrong", "hf_right", "the token in HF_TOKEN"),
        ("", "hf_wrong", "the token in HUGGING_FACE_HUB_TOKEN"),
    ],
)
def test_a_closed_door_says_which_key_was_tried(
    hub: FakeHub, home: Path, token: str, older: str, words: str
) -> None:
    assert ask(hub.endpoint, home, "org/gated", HF_TOKEN=token, HUGGING_FACE_HUB_TOKEN=older) == (
        "--model is 'org/gated', but there is no such folder, and the hub gives this model only to "
        f"accounts that were granted access; it was asked with {words}"
    )


def test_a_model_or_revision_that_does_not_exist_is_named(hub: FakeHub, home: Path) -> None:
    assert ask(hub.endpoint, home, "org/none", HF_TOKEN="") == (
        "--model is 'org/none', but there is no such folder, and the Hugging Face hub has no such "
        "model either; it was asked with no token (HF_TOKEN and HUGGING_FACE_HUB_TOKEN are unset)"
    )
    assert ask(hub.endpoint, home, "org/plain", revision="v3") == (
        "--model is 'org/plain' with --revision 'v3', but there is no such folder, and the Hugging "
        "Face hub has no such revision of it"
    )


def test_pickled_weights_are_neither_fetched_nor_used(hub: FakeHub, home: Path) -> None:
    assert ask(hub.endpoint, home, "org/pickled") == (
        "--model is 'org/pickled', but its weights are there only as pytorch_model.bin, a pickle, "
        "which is never loaded"
    )
    assert "pytorch_model.bin" not in hub.fetched
    assert ask(hub.endpoint, home, "org/empty") == (
        "--model is 'org/empty', but it has no model.safetensors and no shards of it"
    )


def test_a_long_download_is_logged_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DownloadLog, "log_interval_s", 0.0)
    with structlog.testing.capture_logs() as lines:
        files = DownloadLog(total=3)
        files.update(1)
        files.refresh()
        transfer = DownloadLog(total=100, unit="B")
        transfer.update(25)
        transfer.refresh()
        monkeypatch.setattr(DownloadLog, "log_interval_s", 1000.0)
        transfer.update(25)
        transfer.refresh()
    assert lines[-1] == {
        "event": "downloading",
        "log_level": "info",
        "num_bytes": 25,
        "num_total_bytes": 100,
    }
    assert {line["num_total_bytes"] for line in lines} == {100}


def test_a_gguf_file_is_fetched_by_its_name_or_its_type(hub: FakeHub, home: Path) -> None:
    path = ask(hub.endpoint, home, "org/packed:small-Q4_K_M.gguf")
    assert Path(path).name == "small-Q4_K_M.gguf"
    assert hub.fetched == ["small-Q4_K_M.gguf"]
    for model in ("org/packed:Q4_K_M", "org/packed/small-Q4_K_M.gguf"):
        assert ask(hub.endpoint, home, model, "tokenizer") == path
    assert len(hub.fetched) == 1
    assert ask("", home, "org/packed:Q4_K_M", HF_HUB_OFFLINE="1") == path


def test_all_parts_of_a_gguf_model_are_fetched(hub: FakeHub, home: Path) -> None:
    path = ask(hub.endpoint, home, "org/packed:F16")
    assert Path(path).name == "small-F16-00001-of-00002.gguf"
    assert names_in(str(Path(path).parents[1])) == [
        "large/small-F16-00001-of-00002.gguf",
        "large/small-F16-00002-of-00002.gguf",
    ]
    assert ask(hub.endpoint, home, "org/packed:large/small-F16-00001-of-00002.gguf") == path


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("org/packed:Q2_K", "--model is 'org/packed:Q2_K', but org/packed has no such GGUF file"),
        (
            "org/packed:Q8_0",
            "--model is 'org/packed:Q8_0', but org/packed has 2 files for it: one-Q8_0.gguf, two-Q8_0.gguf",
        ),
        (
            "org/packed",
            "--model is 'org/packed', but it has no model.safetensors and no shards of it:"
            " write org/packed:large/small-F16-00001-of-00002.gguf for a GGUF file of it",
        ),
    ],
)
def test_which_gguf_file_is_meant_must_be_clear(
    hub: FakeHub, home: Path, model: str, message: str
) -> None:
    assert ask(hub.endpoint, home, model) == message


def test_a_repository_without_a_config_says_which_gguf_file_to_write(
    hub: FakeHub, home: Path
) -> None:
    assert ask(hub.endpoint, home, "org/file", "config") == (
        "--model is 'org/file', but it has no config.json: write org/file:small.gguf for a GGUF file of it"
    )
