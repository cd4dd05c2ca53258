"""What is read of a file, and that no file can make it read, or take, more than there is."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from pagemesh.errors import ConfigError
from pagemesh.gguf.container import TENSOR_TYPES, GgufFile, read_gguf
from pagemesh.gguf.model import open_gguf
from tests.support.gguf_files import finish
from tests.unit.gguf.small_file import write_small

STRING, ARRAY, U8, U32, F32 = 8, 9, 0, 4, 6


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def key(name: str, type_: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", type_) + value


def tensor(name: str, shape: list[int], type_: int, offset: int) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", type_, offset)


def container(
    keys: list[bytes], tensors: list[bytes], data: bytes = b"", version: int = 3, **counts: int
) -> bytes:
    """A file; `num_keys` and `num_tensors` claim other numbers than there are."""
    claims = counts.get("num_tensors", len(tensors)), counts.get("num_keys", len(keys))
    head = b"GGUF" + struct.pack("<IQQ", version, *claims) + b"".join([*keys, *tensors])
    return head + bytes(-len(head) % 32) + data


def refusal(folder: Path, content: bytes) -> str:
    path = folder / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_gguf(path)
    assert "\n" not in caught.value.message
    return caught.value.message.replace(str(path), "FILE").replace(
        "FILE is not a usable GGUF file: ", ""
    )


def plain(value: Any) -> Any:
    is_array = isinstance(value, Sequence | memoryview) and not isinstance(value, str)
    return list(value) if is_array else value


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_and_tensors_of_both_versions(tmp_path: Path, version: int) -> None:
    path = tmp_path / "model.gguf"
    keys = [
        key("a.text", STRING, text("Grüße")),
        key("a.words", ARRAY, struct.pack("<IQ", STRING, 2) + text("one") + text("")),
        key("a.numbers", ARRAY, struct.pack("<IQ3f", F32, 3, 1.0, 2.0, 0.5)),
        key("a.flag", 7, b"\x01"),
        key("a.small", 1, struct.pack("<b", -3)),
        key("a.large", 10, struct.pack("<Q", 2**63)),
        key("a.double", 12, struct.pack("<d", 0.1)),
    ]
    rows = [tensor("one", [4, 2], 0, 32), tensor("half", [2], 1, 0)]
    data = struct.pack("<2e", 1.5, -2.0) + bytes(28) + struct.pack("<8f", *range(8))
    path.write_bytes(container(keys, rows, data, version))
    file: GgufFile = read_gguf(path)
    found = {name: plain(value) for name, value in file.metadata.items()}
    assert found == {
        "a.text": "Grüße",
        "a.words": ["one", ""],
        "a.numbers": [1.0, 2.0, 0.5],
        "a.flag": True,
        "a.small": -3,
        "a.large": 2**63,
        "a.double": 0.1,
    }
    assert file.tensors["one"].shape == (2, 4)
    assert file.tensors["one"].type.name == "F32"
    assert file.tensors["one"].blocks.cast("f").tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert bytes(file.tensors["half"].blocks) == struct.pack("<2e", 1.5, -2.0)


def test_types_of_tensors_are_those_of_the_gguf_package() -> None:
    for number, type_ in TENSOR_TYPES.items():
        theirs = gguf.GGMLQuantizationType(number)
        assert (theirs.name, *gguf.GGML_QUANT_SIZES[theirs]) == type_


HUGE = 2**62


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"GG", "it begins with b'GG' and not b'GGUF'"),
        (b"\x80\x02}q\x00.", "it begins with b'\\x80\\x02}q' and not b'GGUF'"),
        (b"GGUF\x03\x00", "the version takes 4 bytes at 4, beyond the 6 of the file"),
        (container([], [], version=1), "it is of version 1, but only 2 and 3 can be read"),
        (
            container([], [], version=3 << 24),
            "it is of version 50331648, or big-endian, but only 2 and 3 can be read",
        ),
        (
            container([], [], num_tensors=HUGE),
            f"it claims {HUGE} tensors, more than the 32 bytes of the file may hold",
        ),
        (
            container([], [], num_keys=HUGE),
            f"it claims {HUGE} keys of metadata, more than the 32 bytes of the file may hold",
        ),
        (
            container([struct.pack("<Q", HUGE) + b"name"], []),
            f"key 0 of the metadata claims {HUGE} bytes",
        ),
        (
            container([key("a", STRING, struct.pack("<Q", 2**32) + b"x")], []),
            f"a claims {2**32} bytes",
        ),
        (
            container([key("a", STRING, struct.pack("<Q", 4000) + b"x")], []),
            "a takes 4000 bytes at 45, beyond the 64 of the file",
        ),
        (container([key("a", STRING, text("x").replace(b"x", b"\xff"))], []), "a is not UTF-8: "),
        (container([key("a", 77, b"")], []), "a has the type 77, which is none of the format's"),
        (
            container([key("a", ARRAY, struct.pack("<IQ", 77, 1))], []),
            "a has the type 77, which is none of the format's",
        ),
        (
            container([key("a", ARRAY, struct.pack("<IQ", U8, HUGE))], []),
            f"it claims {HUGE} values in a, more than the 64 bytes of the file may hold",
        ),
        (
            container([key("a", ARRAY, struct.pack("<IQ", STRING, HUGE))], []),
            f"it claims {HUGE} strings in a, more than the 64 bytes of the file may hold",
        ),
        (
            container([key("a", ARRAY, struct.pack("<IQ", ARRAY, 1) * 1000)], []),
            "a is an array of arrays, which no model's metadata has",
        ),
        (
            container([key("a", U8, b"\0")] * 2, []),
            "its metadata has the key 'a' twice",
        ),
        (
            container([key("general.alignment", U32, struct.pack("<I", 3))], []),
            "general.alignment is 3, but must be a power of two",
        ),
        (
            container([key("general.alignment", ARRAY, struct.pack("<IQI", U32, 1, 32))], []),
            "general.alignment is an array of 1 values, but must be a power of two",
        ),
        (
            container([], [tensor("t", [4], 0, 0)] * 2, bytes(64)),
            "it has the tensor t twice",
        ),
        (
            container([], [tensor("t", [4], 99, 0)]),
            "the tensor t is of the type 99, which is none of ggml's",
        ),
        (
            container([], [tensor("t", [4] * 5, 0, 0)]),
            "the tensor t has 5 dimensions, but may have 1 to 4",
        ),
        (
            container([], [tensor("t", [2**40, 2**40], 0, 0)]),
            f"the tensor t has the shape [{2**40}, {2**40}], which F32 in blocks of 1 cannot have",
        ),
        (
            container([], [tensor("t", [33], 2, 0)]),
            "the tensor t has the shape [33], which Q4_0 in blocks of 32 cannot have",
        ),
        (
            container([], [tensor("t", [4], 0, 8)], bytes(64)),
            "the tensor t begins at 8, no multiple of 32",
        ),
        (
            container([], [tensor("t", [9], 0, 0)], bytes(32)),
            "the tensor t of type F32 and shape [9] lies in bytes 64 to 100, but the file has 96",
        ),
        (
            container([], [tensor("t", [4], 0, 2**63)], bytes(32)),
            f"the tensor t of type F32 and shape [4] lies in bytes {2**63 + 64} to {2**63 + 80},"
            " but the file has 96",
        ),
        (
            container([], [tensor("t", [16], 0, 0), tensor("u", [4], 0, 32)], bytes(64)),
            "the tensors t and u overlap",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    assert refusal(tmp_path, content).startswith(message)


def test_each_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    content = write_small(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "model.gguf"
    for length in range(0, len(content) - 1, 13):
        path.write_bytes(content[:length])
        with pytest.raises(ConfigError):
            read_gguf(path)


def write_parts(folder: Path, count: int, **changes: Any) -> list[Path]:
    paths = []
    for number in range(count):
        path = folder / f"model-{number + 1:05}-of-{count:05}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.no", changes.get("number", number))
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", changes.get("tensors", count))
        name = changes.get("name", f"t{number}")
        writer.add_tensor(name, np.full(4, number, np.float32))
        finish(writer)
        paths.append(path)
    return paths


def test_split_files_are_one_model_by_the_name_of_the_first(tmp_path: Path) -> None:
    first, *_ = write_parts(tmp_path, 3)
    model = open_gguf(first)
    assert {name: t.blocks.cast("f")[0] for name, t in model.tensors.items()} == {
        "t0": 0,
        "t1": 1,
        "t2": 2,
    }


@pytest.mark.parametrize(
    ("given", "changes", "message"),
    [
        (1, {}, "is one of 3 files: name the first, model-00001-of-00003.gguf"),
        (0, {"tensors": 9}, "promises 9 tensors, but its 3 files have 3"),
        (0, {"name": "t"}, "has the tensor t, which"),
        (0, {"number": 0}, "says that it is part 0 of 3, but is read as part 1 of 3"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    tmp_path: Path, given: int, changes: dict[str, Any], message: str
) -> None:
    paths = write_parts(tmp_path, 3, **changes)
    with pytest.raises(ConfigError, match=message):
        open_gguf(paths[given])


def test_numbers_of_parts_of_another_type_are_refused(tmp_path: Path) -> None:
    path = write_small(tmp_path / "model.gguf", **{"split.count": [1, 2]})
    with pytest.raises(
        ConfigError, match=r"split\.count = an array of 2 values, but it must be an integer"
    ):
        open_gguf(path)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first, second, _ = write_parts(tmp_path, 3)
    second.unlink()
    with pytest.raises(ConfigError, match=r"model-00002-of-00003\.gguf is missing"):
        open_gguf(first)


def test_a_part_under_another_name_is_refused(tmp_path: Path) -> None:
    path = write_parts(tmp_path, 2)[0].rename(tmp_path / "other.gguf")
    with pytest.raises(ConfigError, match=r"not called NAME-00001-of-00002\.gguf"):
        open_gguf(path)
