from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagemesh.errors import ConfigError
from pagemesh.models.checkpoint import Checkpoint
from tests.unit.models.model_folder import (
    SHAPES,
    make_tensors,
    write_config,
    write_model,
    write_sharded_model,
)


def refuse(name: str) -> bool:
    return False


def message_of(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught, Checkpoint.open(folder) as checkpoint:
        checkpoint.check(SHAPES, refuse)
        for name in SHAPES:
            checkpoint.read(name)
    assert "\n" not in caught.value.message
    return caught.value.message.replace(str(folder), "FOLDER")


@pytest.mark.parametrize("write", [write_model, write_sharded_model])
def test_tensors_come_back_as_written(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path)
    with Checkpoint.open(tmp_path) as checkpoint:
        checkpoint.check(SHAPES, refuse)
        for name, tensor in make_tensors().items():
            assert torch.equal(checkpoint.read(name), tensor)


def test_offsets_point_at_the_tensors_bytes(tmp_path: Path) -> None:
    write_model(tmp_path)
    entry = Checkpoint.open(tmp_path).entries["model.norm.weight"]
    content = (tmp_path / "model.safetensors").read_bytes()[entry.begin : entry.end]
    assert content == make_tensors()["model.norm.weight"].numpy().tobytes()


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = make_tensors()
    del tensors["model.layers.0.mlp.up_proj.weight"]
    write_model(tmp_path, tensors)
    assert message_of(tmp_path) == (
        "FOLDER/model.safetensors lacks the tensor model.layers.0.mlp.up_proj.weight "
        "of shape [6, 8]"
    )


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    write_model(tmp_path, make_tensors(**{"model.norm.weight": torch.ones(9)}))
    assert message_of(tmp_path) == (
        "FOLDER/model.safetensors has the tensor model.norm.weight with shape [9], "
        "but config.json asks for [8]"
    )


def test_an_unexpected_tensor_is_named_unless_it_may_be_ignored(tmp_path: Path) -> None:
    write_model(tmp_path, make_tensors(extra=torch.ones(2, 3)))
    assert message_of(tmp_path) == (
        "FOLDER/model.safetensors has the tensor extra with shape [2, 3], "
        "which config.json has no place for"
    )
    Checkpoint.open(tmp_path).check(SHAPES, lambda name: name == "extra")


def test_a_type_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    write_model(tmp_path, make_tensors(**{"lm_head.weight": torch.ones(11, 8, dtype=torch.int8)}))
    assert message_of(tmp_path) == (
        "FOLDER/model.safetensors has the tensor lm_head.weight of type I8, "
        "but only BF16, F16, F32 can be loaded"
    )


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path)
    assert message_of(tmp_path) == (
        "FOLDER has neither model.safetensors nor model.safetensors.index.json"
    )


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    assert message_of(tmp_path) == (
        "FOLDER has its weights only as pytorch_model.bin, a pickle, which is never loaded; "
        "convert it to model.safetensors"
    )


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_sharded_model(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert message_of(tmp_path) == (
        "FOLDER/model-00002-of-00002.safetensors is missing, "
        "but model.safetensors.index.json names it"
    )


def test_an_index_may_not_name_files_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.safetensors").write_bytes(b"")
    folder = tmp_path / "model"
    folder.mkdir()
    index = {"weight_map": {"lm_head.weight": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "names the file '../elsewhere.safetensors', which lies outside" in message_of(folder)


def test_an_index_without_a_map_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert "index.json has no weight_map" in message_of(tmp_path)


def test_a_truncated_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    write_model(tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-4])
    assert message_of(tmp_path) == (
        f"FOLDER/model.safetensors has {len(content) - 4} bytes, "
        f"but its header describes {len(content)}"
    )


@pytest.mark.parametrize(
    "content",
    [b"", b"\x02", b"\xff" * 8 + b"{}", b"\x02\0\0\0\0\0\0\0[]", b"\x04\0\0\0\0\0\0\0nope"],
    ids=["empty", "short", "header too long", "header not an object", "header not JSON"],
)
def test_something_else_than_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert message_of(tmp_path).startswith("FOLDER/model.safetensors is not a safetensors file: ")


def test_a_pointer_file_of_git_lfs_is_refused(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    (tmp_path / "model.safetensors").write_bytes(pointer)
    assert "is not a safetensors file" in message_of(tmp_path)


Header = dict[str, dict[str, Any]]


def rewrite(folder: Path, change: Callable[[Header], object]) -> None:
    """Two tensors a and b of 8 bytes each, under a header that `change` returns, or changes in place."""
    save_file({"a": torch.zeros(2), "b": torch.ones(2)}, folder / "model.safetensors")
    content = (folder / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header: Header = json.loads(content[8:end])
    made = change(header)
    raw = made if isinstance(made, bytes) else json.dumps(header).encode()
    whole = len(raw).to_bytes(8, "little") + raw + content[end:]
    (folder / "model.safetensors").write_bytes(whole)


@pytest.mark.parametrize(
    ("name", "changes", "complaint"),
    [
        ("b", {"data_offsets": [0, 8]}, "b at 0 to 8 of its data, but it must begin at 8"),
        ("b", {"data_offsets": [4, 12]}, "b at 4 to 12 of its data, but it must begin at 8"),
        ("b", {"data_offsets": [12, 20]}, "b at 12 to 20 of its data, but it must begin at 8"),
        (
            "b",
            {"data_offsets": [8, 12]},
            "b of type F32 and shape [2] in 4 bytes, but it must have 8",
        ),
        (
            "b",
            {"data_offsets": [8, 0]},
            "b of type F32 and shape [2] in -8 bytes, but it must have 8",
        ),
        ("a", {"data_offsets": [-8, 0]}, "a at -8 to 0 of its data, but it must begin at 0"),
        (
            "b",
            {"data_offsets": [8, 0], "dtype": "X"},
            "b at 8 to 0 of its data, but it must end at 8 or later",
        ),
        ("a", {"data_offsets": [-1, 7]}, "a at -1 to 7 of its data, but it must begin at 0"),
        ("a", {"shape": [3]}, "a of type F32 and shape [3] in 8 bytes, but it must have 12"),
        ("a", {"dtype": "F16"}, "a of type F16 and shape [2] in 8 bytes, but it must have 4"),
        ("a", {"shape": [2] + 64 * [1]}, "a with 65 dimensions, but 64 are the most"),
    ],
)
def test_tensors_that_cannot_lie_as_a_header_says_are_named(
    tmp_path: Path, name: str, changes: dict[str, Any], complaint: str
) -> None:
    rewrite(tmp_path, lambda header: header[name].update(changes))
    assert message_of(tmp_path) == f"FOLDER/model.safetensors has the tensor {complaint}"


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["a"].update(shape=[-2]),
        lambda header: header["a"].update(shape=[2.0]),
        lambda header: header["a"].update(shape=[True, 2]),
        lambda header: header["a"].update(data_offsets=[0.5, 8]),
        lambda header: json.dumps(header).replace("[2]", "[1e999]").encode(),
        lambda header: json.dumps(header).replace("[2]", "2").encode(),
        lambda header: header["a"].update(shape=[-1] * 100_000),
        lambda header: header.update(__metadata__=[1]),
        lambda header: header.update(__metadata__={"a": {}}),
        lambda header: b"[" * 100_000,
    ],
    ids=[
        "negative",
        "float",
        "bool",
        "half a byte",
        "infinite",
        "no list",
        "long",
        "metadata",
        "inner metadata",
        "nested",
    ],
)
def test_headers_of_something_else_are_refused(
    tmp_path: Path, change: Callable[[Header], object]
) -> None:
    rewrite(tmp_path, change)
    message = message_of(tmp_path)
    assert message.startswith("FOLDER/model.safetensors is not a safetensors file: its header ")
    assert len(message) < 200


def test_a_tensor_that_two_shards_have_is_named(tmp_path: Path) -> None:
    write_sharded_model(tmp_path)
    second = tmp_path / "model-00002-of-00002.safetensors"
    name = "model.embed_tokens.weight"
    save_file({**load_file(second), name: torch.ones(11, 8)}, second)
    assert message_of(tmp_path) == (
        f"{second} has the tensor {name}, which model-00001-of-00002.safetensors has as well"
    ).replace(str(tmp_path), "FOLDER")


def test_files_that_the_index_does_not_name_are_not_read(tmp_path: Path) -> None:
    """Mistral's folders have the same weights once more, in one file with names of its own."""
    write_sharded_model(tmp_path)
    save_file(make_tensors(), tmp_path / "consolidated.safetensors")
    with Checkpoint.open(tmp_path) as checkpoint:
        checkpoint.check(SHAPES, refuse)
