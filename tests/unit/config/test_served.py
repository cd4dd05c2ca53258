"""What settings about models and their names mean together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pagemesh.cli.settings import UpConfig
from pagemesh.config import ChatConfig, HubConfig, ModelConfig, RouterConfig
from pagemesh.config.served import (
    NamedModel,
    ServedModels,
    is_hub_id,
    names_of,
    read_served_models,
    split_gguf,
    with_gguf_file,
)
from pagemesh.errors import ConfigError


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with a folder of models."""
    (tmp_path / "models" / "demo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "name", "other"),
    [
        ("models/demo", "demo", "models/demo"),
        ("models/demo/", "demo", "models/demo/"),
        ("models", "models", None),
        ("/models/a=b", "a=b", "/models/a=b"),
        ("./a=b", "a=b", "./a=b"),
        ("~/a", "a", "~/a"),
        ("a/b/c", "c", "a/b/c"),
        ("org/model", "org/model", "model"),
        ("gpt2", "gpt2", None),
        ("demo", "demo", None),
        ("smollm2", "smollm2", None),
    ],
)
def test_a_folder_is_called_by_its_last_part_and_a_hub_id_by_the_whole(
    source: str, name: str, other: str | None
) -> None:
    served = read_served_models([source], [], [])
    assert served.models == (NamedModel(name, source, other),)
    assert served.unlisted == ({} if other is None else {other: name})
    # Workers are told no names, and find the same.
    assert ModelConfig(source).served_name == name


def test_a_folder_that_is_only_a_way_is_called_by_its_own_name(folders: Path) -> None:
    assert ModelConfig(".").served_name == folders.name
    assert ModelConfig("models/..").served_name == folders.name


def test_a_name_that_was_given_is_the_only_one() -> None:
    assert read_served_models(["org/model"], ["a", "b"], []).unlisted == {}
    assert read_served_models(["a=org/model", "b=models/demo"], [], []).unlisted == {}
    assert ModelConfig("org/model", "a").served_name == "a"


@pytest.mark.parametrize(
    ("models", "aliases", "unlisted"),
    [
        (["x/m", "y/m"], [], {}),
        (["x/m", "m"], [], {}),
        (["x/m", "y/n"], [], {"m": "x/m", "n": "y/n"}),
        (["x/m", "y/n"], ["m=y/n"], {"n": "y/n"}),
        (["x/demo", "models/demo"], [], {"models/demo": "demo"}),
    ],
)
def test_a_name_that_may_mean_two_things_means_none(
    models: list[str], aliases: list[str], unlisted: dict[str, str]
) -> None:
    assert read_served_models(models, [], aliases).unlisted == unlisted


def test_a_model_can_be_given_its_name() -> None:
    served = read_served_models(["org/chat=models/demo", "embed=./a=b"], [], [])
    assert served.models == (
        NamedModel("org/chat", "models/demo"),
        NamedModel("embed", "./a=b"),
    )
    assert served.names == ("org/chat", "embed")


def test_a_single_model_may_have_several_names() -> None:
    served = read_served_models(["models/demo"], ["first", "second", "third"], [])
    assert served == ServedModels(
        (NamedModel("first", "models/demo"),), {"second": {"first": 1.0}, "third": {"first": 1.0}}
    )


def test_an_alias_stands_for_one_model_or_several() -> None:
    served = read_served_models(["a", "b:x=b"], [], ["gpt=a", "chat=a:9,b:x:1", "even=a,b:x"])
    assert served.aliases == {
        "gpt": {"a": 1.0},
        "chat": {"a": 9.0, "b:x": 1.0},
        "even": {"a": 1.0, "b:x": 1.0},
    }
    served = read_served_models(["org/a", "models/demo"], [], ["gpt=a:2,models/demo"])
    assert served.aliases == {"gpt": {"org/a": 2.0, "demo": 1.0}}


@pytest.mark.parametrize(
    ("models", "names", "aliases", "complaint"),
    [
        ([], [], [], "--model is '', but must be a folder or a hub id"),
        (["a", ""], [], [], "--model is 'a ', but must be a folder or a hub id"),
        (["a="], [], [], "--model is 'a=', but must be name=folder, or a folder or a hub id"),
        (["=a"], [], [], "--model is '=a', but must be name=folder, or a folder or a hub id"),
        (
            ["./x/m", "./y/m"],
            [],
            [],
            "--model is './x/m ./y/m', but must be models with different names, but two are called 'm': write "
            "name=folder for one of them",
        ),
        (
            ["a", "b"],
            ["c", "d"],
            [],
            "--served-model-name is 'c d', but must be left out when --model has 2 models: write name=folder "
            "there, and further names in --model-alias",
        ),
        (["a"], [], ["b"], "--model-alias is 'b', but must be alias=model or alias=model:weight,…"),
        (
            ["a"],
            [],
            ["=a"],
            "--model-alias is '=a', but must be alias=model or alias=model:weight,…",
        ),
        (
            ["a"],
            [],
            ["b=a", "b=a"],
            "--model-alias is 'b=a', but must be the only alias called 'b'",
        ),
        (
            ["a"],
            ["a", "b"],
            ["b=a"],
            "--model-alias is 'b=a', but must be the only alias called 'b'",
        ),
        (
            ["a"],
            [],
            ["a=a"],
            "--model-alias is 'a', but must be something else than a model's name",
        ),
        (
            ["a", "b"],
            [],
            ["c=d"],
            "--model-alias is 'c=d', but must be alias=model:weight,… of the models a, b",
        ),
        (
            ["a"],
            [],
            ["b=a", "c=b"],
            "--model-alias is 'c=b', but must be alias=model:weight,… of the models a",
        ),
        (
            ["a"],
            [],
            ["c=a,a"],
            "--model-alias is 'c=a,a', but must be of different models: a twice",
        ),
        *(
            (
                ["a"],
                [],
                [f"c=a:{weight}"],
                f"--model-alias is 'c=a:{weight}', but must be with weights above 0, which {weight!r} is not",
            )
            for weight in ("0", "-1", "nan", "inf", "much", "")
        ),
    ],
)
def test_what_cannot_be_is_refused(
    models: list[str], names: list[str], aliases: list[str], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(complaint)}$"):
        read_served_models(models, names, aliases)


def test_some_settings_are_for_one_model() -> None:
    two = ("a", "b")
    with pytest.raises(ConfigError, match="--revision is 'v2', but must be unset for 2 models"):
        RouterConfig(model=two, kvstore="a:1", hub=HubConfig("v2"))
    with pytest.raises(ConfigError, match=r"--chat-template is 't\.jinja', but must be unset"):
        UpConfig(model=two, chat=ChatConfig("t.jinja"))
    assert RouterConfig(model=("a",), kvstore="a:1", hub=HubConfig("v2")).served.names == ("a",)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("owner/name:model-Q4_K_M.gguf", ("owner/name", "model-Q4_K_M.gguf")),
        ("owner/name:Q4_K_M", ("owner/name", "Q4_K_M")),
        ("owner/name:sub/model.gguf", ("owner/name", "sub/model.gguf")),
        ("owner/name/model.gguf", ("owner/name", "model.gguf")),
        ("owner/name", None),
        ("owner/name.gguf", None),
        ("a/b/c", None),
        ("/a/b/model.gguf", None),
        ("./a/model.gguf", None),
        ("../a/b/model.gguf", None),
        ("model.gguf", None),
        ("name:Q4_K_M", None),
        ("owner/name:../model.gguf", None),
    ],
)
def test_gguf_files_of_the_hub_are_written_as_for_vllm(
    source: str, expected: tuple[str, str] | None
) -> None:
    assert split_gguf(source) == expected
    assert not expected or is_hub_id(source)


def test_a_gguf_file_is_called_what_its_file_is_called() -> None:
    assert names_of("/models/a.Q4_1.gguf") == ("a.Q4_1.gguf", "/models/a.Q4_1.gguf")
    assert names_of("owner/name:Q4_K_M") == ("owner/name:Q4_K_M", "name:Q4_K_M")


def test_a_gguf_file_is_put_behind_its_folder_or_its_repository(folders: Path) -> None:
    folder = folders / "gg"
    folder.mkdir()
    # The hub's cache has links.
    (folders / "blob").touch()
    (folder / "a.Q8_0.gguf").symlink_to(folders / "blob")
    assert with_gguf_file("gg", "a.Q8_0.gguf") == "gg/a.Q8_0.gguf"
    assert with_gguf_file("./gg/", "gg/a.Q8_0.gguf") == "gg/a.Q8_0.gguf"
    assert with_gguf_file("gg", f"{folder}/a.Q8_0.gguf") == f"{folder}/a.Q8_0.gguf"
    assert with_gguf_file("owner/name", "a.Q8_0.gguf") == "owner/name:a.Q8_0.gguf"
    assert with_gguf_file("owner/name", "Q8_0") == "owner/name:Q8_0"


@pytest.mark.parametrize(
    ("source", "file", "told"),
    [
        ("gg", "b.gguf", "but the folder gg has no such GGUF file: it has a.Q8_0.gguf"),
        ("gg", "a.Q8_0", "but the folder gg has no such GGUF file: it has a.Q8_0.gguf"),
        ("gg", "config.json", "but the folder gg has no such GGUF file: it has a.Q8_0.gguf"),
        (
            "gg",
            "other/c.gguf",
            "but the folder gg has no such GGUF file: write --model other/c.gguf for the one that is there",
        ),
        ("other/", "a.gguf", "but the folder other/ has no such GGUF file: it has c.gguf, d.gguf"),
        ("empty", "a.gguf", "but the folder empty has no such GGUF file: it has none"),
        ("gg/a.Q8_0.gguf", "b.gguf", "but --model names a file as well: gg/a.Q8_0.gguf"),
        ("owner/name:Q8_0", "b.gguf", "but --model names a file as well: owner/name:Q8_0"),
        ("smollm2", "b.gguf", "but --model names a file as well: smollm2"),
        ("./none", "b.gguf", "but --model is './none', which is neither a folder nor an owner/name of the hub"),
        ("none", "b.gguf", "but --model is 'none', which is neither a folder nor an owner/name of the hub"),
        ("gg/config.json", "b.gguf", "but --model is 'gg/config.json', which is neither a folder nor an owner/name of the hub"),
        ("owner/name", "/tmp/a.gguf", "but must be the name of a file in the repository owner/name"),
    ],
)  # fmt: skip
def test_a_gguf_file_that_is_not_there_is_refused_with_those_that_are(
    source: str, file: str, told: str, folders: Path
) -> None:
    for name in ("gg/a.Q8_0.gguf", "gg/config.json", "other/c.gguf", "other/d.gguf", "empty/x"):
        path = folders / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    with pytest.raises(ConfigError) as caught:
        with_gguf_file(source, file)
    assert caught.value.message == f"--gguf-file is {file!r}, {told}"
