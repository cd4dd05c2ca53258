"""`--quantization`, `--load-format` and `--gguf-file` of `pagemesh serve`, beside models that are there: each model is
held against them before a process is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagemesh.cli.arguments import UsageError
from pagemesh.cli.main import main
from pagemesh.cli.settings import UpConfig
from pagemesh.cli.vllm.adapt import adapt
from pagemesh.errors import ConfigError
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


def adapted_refusal(text: str) -> str:
    with pytest.raises((UsageError, ConfigError)) as caught:
        adapt(UpConfig, text.split())
    return str(caught.value)


QUANTISES = "--quantization int4 quantises it while it is loaded"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "awq --quantization gguf",
            "--quantization is gguf, but awq/config.json names a checkpoint quantised by awq:",
        ),
        (
            "dense --quantization gguf",
            "--quantization is gguf, but dense/config.json names a checkpoint that is not quantised:"
            f" {QUANTISES}, or take one that is quantised by gguf, as FOLDER/FILE.gguf or owner/name:FILE.gguf",
        ),
        (
            "--model gg/small.Q8_0.gguf dense --quantization gguf",
            "--quantization is gguf, but dense/config.json names a checkpoint that is not quantised:",
        ),
        (
            "--model a=gg/small.Q8_0.gguf b=awq --load-format gguf",
            "--load-format is gguf, but awq/config.json names a checkpoint quantised by awq:",
        ),
        (
            "--model awq gg/small.Q8_0.gguf --load-format gguf",
            "--load-format is gguf, but awq/config.json names a checkpoint quantised by awq:",
        ),
        (
            "dense --load-format gguf",
            "--load-format is gguf, but dense/config.json names a checkpoint that is not quantised:"
            f" {QUANTISES}, or take one that is quantised by gguf, as FOLDER/FILE.gguf or owner/name:FILE.gguf",
        ),
        (
            "awq --load-format bitsandbytes",
            "--load-format is bitsandbytes, but awq/config.json names a checkpoint quantised by awq:",
        ),
        (
            "gg/small.Q8_0.gguf --load-format safetensors",
            "--load-format is safetensors, but gg/small.Q8_0.gguf/config.json names a checkpoint quantised by gguf:",
        ),
        (
            "--model dense gg/small.Q8_0.gguf --load-format safetensors",
            "--load-format is safetensors, but gg/small.Q8_0.gguf/config.json names a checkpoint quantised by gguf:",
        ),
        (
            "nf4 --load-format bitsandbytes -q awq",
            "--quantization is awq, but nf4/config.json names a checkpoint quantised by bitsandbytes:",
        ),
        (
            "fp8 -q fbgemm_fp8",
            "--quantization is fbgemm_fp8, but fp8/config.json names a checkpoint quantised by fp8:",
        ),
    ],
)
def test_each_model_must_be_what_flags_call_it(
    text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal("serve", text, capsys).startswith(told)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        # What is refused instead is that these folders have no weights.
        ("nf4 --load-format bitsandbytes", "nf4"),
        ("nf4 --load-format bitsandbytes -q bitsandbytes", "nf4"),
        ("awq --load-format safetensors -q awq", "awq"),
        ("--model gg/small.Q8_0.gguf dense --load-format auto", "dense"),
    ],
)
def test_a_model_may_be_called_what_it_is(
    text: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal("serve", text, capsys).startswith(f"{where} has neither model.safetensors nor")


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


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("gg --gguf-file small.Q8_0.gguf", "gg/small.Q8_0.gguf"),
        ("./gg/ --gguf-file=small.Q8_0.gguf", "./gg/small.Q8_0.gguf"),
        ("chat=gg --gguf-file gg/small.Q8_0.gguf", "chat=gg/small.Q8_0.gguf"),
        ("--model owner/name --gguf-file a.Q4_K_M.gguf", "owner/name:a.Q4_K_M.gguf"),
        ("chat=owner/name --gguf-file Q4_K_M", "chat=owner/name:Q4_K_M"),
        ("--model other --model gg --gguf-file small.Q8_0.gguf", "gg/small.Q8_0.gguf"),
    ],
)
def test_a_gguf_file_is_named_beside_its_folder_or_its_repository(text: str, model: str) -> None:
    arguments = adapt(UpConfig, text.split()).arguments
    assert arguments == ["--model", model]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "--model gg awq --gguf-file small.Q8_0.gguf",
            "--gguf-file is 'small.Q8_0.gguf', but --model has 2 models, gg and awq: write FOLDER/FILE.gguf or"
            " owner/name:FILE.gguf in the place of each",
        ),
        ("--gguf-file b.gguf", "--gguf-file is 'b.gguf', but there is no --model"),
        (
            "a=a.gguf --gguf-file b.gguf",
            "--gguf-file is 'b.gguf', but --model names a file as well: a.gguf",
        ),
    ],
)
def test_a_gguf_file_is_of_one_model_that_names_none(text: str, told: str) -> None:
    assert adapted_refusal(text) == told
