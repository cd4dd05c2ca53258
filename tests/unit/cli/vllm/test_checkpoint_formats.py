"""`--quantization`, `--load-format` and `--gguf-file` of `pagemesh serve`, beside models that are there: each model is
held against them before a process is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagemesh.cli.main import main
from tests.support.ports import free_port
from tests.unit.gguf.small_file import write_small
from tests.unit.models.model_folder import write_config

FORMATS = {"awq": "awq", "nf4": "bitsandbytes", "fp8": "fp8", "dense": None}


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the current folder."""
    for name, method in FORMATS.items():
        (tmp_path / name).mkdir()
        write_config(
            tmp_path / name,
            quantization_config=None if method is None else {"quant_method": method},
        )
    (tmp_path / "gg").mkdir()
    write_small(tmp_path / "gg/small.Q8_0.gguf")
    monkeypatch.chdir(tmp_path)


def refusal(command: str, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The last line of a command that ends without having started anything."""
    flags = ("--device", "cpu", "--port", str(free_port()))
    assert main([command, *text.split(), *flags]) != 0
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.splitlines()[-1].removeprefix(f"pagemesh {command}: ")


@pytest.mark.parametrize("command", ["serve", "up"])
def test_transformers_runs_no_gguf_file(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = "--model gg/small.Q8_0.gguf --model-impl transformers"
    assert refusal(command, text, capsys) == (
        "gg/small.Q8_0.gguf is a GGUF file, which pagemesh runs itself: leave out --model-impl transformers"
    )


def test_a_model_that_pagemesh_does_not_run_is_refused_where_it_has_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path / "dense", architectures=["OtherForCausalLM"])
    message = refusal("up", "--model dense --model-impl pagemesh", capsys)
    assert "'OtherForCausalLM', which pagemesh does not run itself" in message
