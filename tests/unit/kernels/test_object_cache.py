"""Machine code is taken from disk where an earlier process left it, and is made anew where it cannot be trusted."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
from llvmlite import ir

from pagemesh.kernels.jit import compiled, object_cache
from pagemesh.kernels.jit.compiled import CompiledFunction
from pagemesh.kernels.jit.cpu_isa import features_without_better, processor_isas, using_isa
from pagemesh.kernels.jit.object_cache import VARIABLE, find_code, keep_code, key_of


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "kernels"
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


def writing(number: int) -> ir.Module:
    """A function that writes it where its argument points to."""
    module = ir.Module("kernels")
    integer = ir.IntType(64)
    function = ir.Function(
        module, ir.FunctionType(ir.VoidType(), [integer.as_pointer()]), "writing"
    )
    builder = ir.IRBuilder(function.append_basic_block())
    builder.store(integer(number), function.args[0])
    builder.ret_void()
    return module


def written(number: int) -> int:
    """By a function that was compiled now."""
    target = ctypes.c_int64()
    function = CompiledFunction(writing(number), "writing")
    function.call(ctypes.addressof(target))
    return target.value


def refuse_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> bytes:
        raise OSError("compiled again")

    monkeypatch.setattr(compiled, "_make_code", never)


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_code_is_made_once(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    assert (written(7), written(8)) == (7, 8)
    assert len(files(folder)) == 2
    refuse_to_compile(monkeypatch)
    assert (written(8), written(7)) == (8, 7)
    with pytest.raises(Exception, match="compiled again"):
        written(9)


def test_a_class_of_processors_has_its_own(folder: Path) -> None:
    for isa in processor_isas():
        with using_isa(isa):
            assert written(7) == 7
    # Some may use the same features.
    assert len(files(folder)) == len(set(map(features_without_better, processor_isas())))


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_damaged_code_is_made_anew(damage: str, folder: Path) -> None:
    written(7)
    (path,) = files(folder)
    whole = path.read_bytes()
    wrong = {"cut": whole[:-1], "changed": whole[:-1] + b"\xff", "empty": b""}[damage]
    path.write_bytes(wrong)
    assert written(7) == 7
    assert path.read_bytes() == whole


def test_code_that_others_could_have_written_is_not_run(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    written(7)
    folder.chmod(0o777)
    object_cache._folder.cache_clear()
    refuse_to_compile(monkeypatch)
    with pytest.raises(Exception, match="compiled again"):
        written(7)


def test_a_folder_of_somebody_else_is_not_used(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    folder.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    assert written(7) == 7
    assert files(folder) == []


def test_nothing_is_kept_where_that_is_asked_or_impossible(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path
) -> None:
    (tmp_path / "file").touch()
    for named in ("", str(tmp_path / "file"), str(tmp_path / "file/below")):
        monkeypatch.setenv(VARIABLE, named)
        assert written(7) == 7
    assert not folder.exists()


def test_a_folder_that_can_no_longer_be_written_is_still_read(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    written(7)

    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    assert written(8) == 8
    refuse_to_compile(monkeypatch)
    assert written(7) == 7


def test_what_is_written_in_part_is_removed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert written(7) == 7
    assert files(folder) == []


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    object_cache._folder.cache_clear()
    try:
        assert written(7) == 7
    finally:
        object_cache._folder.cache_clear()


def test_it_lies_where_a_users_caches_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    object_cache._folder.cache_clear()
    try:
        written(7)
        (folder,) = (tmp_path / "cache/pagemesh").iterdir()
    finally:
        object_cache._folder.cache_clear()
    assert folder.name == "kernels"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_was_not_used_for_long_is_removed(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    keys = [key_of(str(number)) for number in range(4)]
    for age, key in enumerate(keys):
        keep_code(key, b"code")
        os.utime(folder / f"{key}.o", (1000.0 - age, 1000.0 - age))
    # Looking at the oldest makes it the newest.
    assert find_code(keys[3]) == b"code"
    monkeypatch.setattr(object_cache, "_MOST_FILES", 2)
    object_cache._folder.cache_clear()
    assert [find_code(key) for key in keys] == [b"code", None, None, b"code"]


def test_parts_of_a_key_are_kept_apart() -> None:
    assert key_of("ab", "c") != key_of("a", "bc")
