"""`--max-model-len auto` for commands whose settings have a number there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pagemesh.cli.longest_context import mesh_arguments, worker_arguments
from pagemesh.cli.up import memory
from pagemesh.errors import ConfigError
from pagemesh.sizing.machine import MachineMemory
from tests.unit.cli.up.test_up_memory import GIB, LLAMA_7B

Arguments = Callable[[Sequence[str]], list[str]]
COMMANDS = pytest.mark.parametrize(
    "arguments", [mesh_arguments, worker_arguments], ids=["up", "worker"]
)


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model whose 4,096 tokens take 2 GiB of KV, on a machine that has room for it."""
    monkeypatch.setattr(memory, "machine_memory", lambda: MachineMemory(64 * GIB, 60 * GIB))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_7B))
    return str(tmp_path)


@COMMANDS
@pytest.mark.parametrize(
    "words",
    [["--max-model-len", "auto"], ["--max-model-len", "-1"], ["--max_model_len=auto"]],
    ids=" ".join,
)
def test_the_longest_context_that_fits_is_taken_and_said(
    llama: str, arguments: Arguments, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    others = ["--model", llama, "--device", "cpu", "--kv-cache-memory", "1"]
    assert arguments([*others, *words]) == [*others, "--max-model-len", "2048"]
    assert capsys.readouterr().err == (
        "pagemesh: 2048 tokens are the longest context whose KV fits, of the 4096 that the model has"
        " (--max-model-len)\n"
    )


@COMMANDS
def test_without_a_word_about_its_size_the_cache_is_that_of_every_worker(
    llama: str, arguments: Arguments
) -> None:
    given = ["--model", llama, "--device", "cpu", "--max-model-len", "auto"]
    assert arguments(given)[-2:] == ["--max-model-len", "512"]


@COMMANDS
def test_a_whole_context_that_fits_needs_no_number(
    llama: str, arguments: Arguments, capsys: pytest.CaptureFixture[str]
) -> None:
    others = ["--model", llama, "--device", "cpu", "--kv-cache-memory", "2"]
    assert arguments([*others, "--max-model-len", "auto"]) == others
    assert capsys.readouterr().err == ""


@COMMANDS
def test_numbers_stay_as_they_are(arguments: Arguments) -> None:
    for given in (["--max-model-len", "77"], ["--max-model-len=77"], ["--model", "auto"], []):
        assert arguments(given) == given


def test_a_mesh_that_does_not_fit_is_refused(llama: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: MachineMemory(GIB, GIB))
    with pytest.raises(ConfigError, match="before the first KV block"):
        mesh_arguments(["--model", llama, "--device", "cpu", "--max-model-len", "auto"])
