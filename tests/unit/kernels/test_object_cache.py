"""Machine code is taken from disk where an earlier process left it, and is made anew where it cannot be trusted."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagemesh.kernels.jit import compiled, object_cache
from pagemesh.kernels.jit.compiled import CompiledFunction
from pagemesh.kernels.jit.cpu_isa import (
    Recipe,
    features_without_better,
    per_isa,
    processor_isas,
    using_isa,
)
from pagemesh.kernels.jit.emit import I64, Emitter
from pagemesh.kernels.jit.object_cache import VARIABLE, find, keep, kernel_sources, key_of

DEMO = Path(__file__).resolve().parents[3] / "models/demo"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "kernels"
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the sources of all kernels had not been changed for long."""
    monkeypatch.setattr(object_cache, "_imported_at", math.inf)
    object_cache.kernel_sources.cache_clear()


def written(number: int, recipe: Recipe | None = None) -> int:
    """By a function that was compiled now."""
    target = ctypes.c_int64()

    def emit(e: Emitter) -> None:
        e.builder.store(e.int64(number), e.builder.bitcast(e.function.args[0], I64.as_pointer()))
        e.builder.ret_void()

    function = CompiledFunction(recipe, "writing", emit)
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
        keep(key, b"code")
        os.utime(folder / f"{key}.o", (1000.0 - age, 1000.0 - age))
    # Looking at the oldest makes it the newest.
    assert find(keys[3]) == b"code"
    monkeypatch.setattr(object_cache, "_MOST_FILES", 2)
    object_cache._folder.cache_clear()
    assert [find(key) for key in keys] == [b"code", None, None, b"code"]


def test_parts_of_a_key_are_kept_apart() -> None:
    assert key_of("ab", "c") != key_of("a", "bc")


def test_what_has_a_recipe_is_written_once(folder: Path) -> None:
    assert written(7, Recipe("seven")) == 7
    assert len(files(folder)) == 2
    # What would be written now is not asked for.
    assert written(8, Recipe("seven")) == 7
    assert written(8, Recipe("eight")) == 8
    # Another recipe for the same: code is kept once.
    assert written(8, Recipe("4 + 4")) == 8
    assert len(files(folder)) == 5


def test_what_a_recipe_led_to_may_be_gone(folder: Path) -> None:
    written(7, Recipe("seven"))
    largest = max(files(folder), key=lambda path: path.stat().st_size)
    largest.unlink()
    assert written(8, Recipe("seven")) == 8


def test_sources_that_changed_lately_have_no_recipes(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """This process may have read what was there before."""
    newest = max(path.stat().st_ctime for path in Path(object_cache.__file__).parent.glob("*.py"))
    monkeypatch.setattr(object_cache, "_imported_at", newest + object_cache._SETTLED_S - 0.01)
    kernel_sources.cache_clear()
    assert written(7, Recipe("seven")) == 7
    assert written(8, Recipe("seven")) == 8
    assert len(files(folder)) == 2


def test_other_sources_have_other_recipes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = tmp_path / "kernels"
    monkeypatch.setattr(object_cache, "__file__", str(root / "jit/object_cache.py"))

    def sources(**texts: str) -> str | None:
        kernel_sources.cache_clear()
        for name, text in texts.items():
            path = root / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return kernel_sources()

    found = [
        sources(one="1", two="2"),
        sources(two="3"),
        sources(one="13", two=""),
        sources(six=""),
    ]
    assert None not in found
    assert len(set(found)) == len(found)
    assert sources() == found[-1]


@per_isa
def described(recipe: Recipe, size: int, *, adds: bool) -> Recipe:
    return recipe


def test_a_recipe_names_kernel_arguments_and_class() -> None:
    recipe = described(3, adds=True)
    assert recipe.startswith(f"{__name__}.described (3,) [('adds', True)] ")
    assert described(3, adds=True) is recipe
    with using_isa(processor_isas()[-1]):
        others = {described(3, adds=True), described(3, adds=False), described(4, adds=True)}
    assert len(others | {recipe}) == 3 + (len(processor_isas()) > 1)


QUANTISED = """
import math, sys
from pagemesh.kernels.jit import compiled, object_cache
from pagemesh.llm import LLM, SamplingParams

object_cache._imported_at = math.inf
numbers = []
write = compiled._text
compiled._text = lambda *arguments: numbers.append(1) or write(*arguments)
llm = LLM(sys.argv[1], quantization="int4", max_model_len=64, kv_cache_memory=0.01)
(answer,) = llm.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=4))
print(len(numbers), *answer.outputs[0].token_ids)
"""


def test_another_process_writes_no_kernel_that_has_been_written() -> None:
    """Recipes of all that a model needs say the same in every process."""
    answers = [
        subprocess.run(
            [sys.executable, "-c", QUANTISED, str(DEMO)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    (first, *tokens), (second, *same) = answers
    assert int(first) > 10
    assert int(second) == 0
    assert tokens == same
