"""`pagemesh plan`: a table for people, JSON for programs, from config.json alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pagemesh.cli.main import main
from tests.unit.gguf.small_file import write_small


@pytest.fixture
def folder(demo_model: Path, tmp_path: Path) -> str:
    """The demo model without anything but its config.json."""
    shutil.copy(demo_model / "config.json", tmp_path)
    return str(tmp_path)


def test_the_table_says_what_fits(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", folder, "--memory", "1"]) == 0
    assert (
        capsys.readouterr().out
        == f"""\
{folder} (LlamaForCausalLM) on a CPU with 1.00 GiB

  weights          15.5 MiB   4.1 million parameters, float32
  tables            2.2 MiB   of positions, and what is kept twice
  runtime          0.30 GiB
  activations       4.5 MiB   of a step of 512 tokens, 64 requests
  KV cache         0.68 GiB   118528 tokens, float32

KV of a token takes 6 KiB.
57 requests of 2048 tokens fit at once, or 118528 tokens in 7408 blocks of 16.
"""
    )


@pytest.mark.parametrize(
    ("memory", "asked", "stored", "row_bytes"),
    [
        ("--gpu-memory", "fp8", "float8_e4m3fn", 32),
        ("--memory", "fp8", "float8_e4m3fn", 32),
        # The numbers, and a scale behind them.
        ("--memory", "int8", "int8", 32 + 4),
    ],
)
def test_8_bit_kv_takes_half_of_what_16_bits_take(
    folder: str,
    capsys: pytest.CaptureFixture[str],
    memory: str,
    asked: str,
    stored: str,
    row_bytes: int,
) -> None:
    flags = [memory, "2", "--dtype", "bfloat16", "--kv-cache-dtype", asked]
    assert main(["plan", folder, *flags, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["dtype"], answer["kv_cache_dtype"]) == ("bfloat16", stored)
    # 6 layers, keys and values of 4 heads.
    assert answer["per_device"]["kv_bytes_per_token"] == 6 * 2 * 4 * row_bytes


def test_int8_kv_is_refused_for_a_gpu(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", folder, "--gpu-memory", "2", "--kv-cache-dtype", "int8"]) == 1
    assert "--kv-cache-dtype is 'int8', but must be auto or fp8 on a GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpu", "capability"), [("rtx-3090", "8.6"), ("a100-40gb", "8.0"), ("a100-80gb", "8.0")]
)
def test_fp8_kv_is_refused_for_a_kind_of_gpu_without_such_floats(
    folder: str, capsys: pytest.CaptureFixture[str], gpu: str, capability: str
) -> None:
    assert main(["plan", folder, "--gpu", gpu, "--kv-cache-dtype", "fp8"]) == 1
    assert capsys.readouterr().err == (
        "pagemesh plan: --kv-cache-dtype is 'fp8', but must be auto on this GPU: it has compute capability"
        f" {capability}, and 8-bit floats begin with 8.9\n"
    )
    assert main(["plan", folder, "--gpu", gpu, "--kv-cache-dtype", "auto"]) == 0


@pytest.mark.parametrize("gpu", ["l4", "l40s", "rtx-4090", "h100", "h200", "b200"])
def test_fp8_kv_is_planned_for_a_kind_of_gpu_that_has_such_floats(
    folder: str, capsys: pytest.CaptureFixture[str], gpu: str
) -> None:
    assert main(["plan", folder, "--gpu", gpu, "--kv-cache-dtype", "fp8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kv_cache_dtype"] == "float8_e4m3fn"


def test_json_has_the_numbers(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--gpu-memory", "2", "--gpu-memory-utilization", "0.5", "--tensor-parallel-size", "2"]
    flags += ["--dtype", "bfloat16", "--max-model-len", "1000"]
    assert main(["plan", "--model", folder, *flags, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    per_device = answer.pop("per_device")
    assert answer == {
        "model": folder,
        "architecture": "LlamaForCausalLM",
        "num_parameters": 4_066_560,
        "dtype": "bfloat16",
        "quantization": None,
        "left_dense": None,
        "kv_cache_dtype": "bfloat16",
        "device": "cuda",
        "tensor_parallel_size": 2,
        "max_model_len": 1000,
        "num_tokens": per_device["num_blocks"] * 16,
        "max_concurrency": per_device["num_blocks"] // 63,
    }
    assert per_device["usable_bytes"] == 2**30
    # 6 layers, keys and values of 2 of the 4 heads of 32 numbers of 2 bytes.
    assert per_device["kv_bytes_per_token"] == 6 * 2 * 2 * 32 * 2
    assert per_device["kv_bytes"] // (16 * 1536) == per_device["num_blocks"]


def test_what_does_not_fit_is_said(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", folder, "--memory", "0.3"])
    assert "The model does not fit: 22.3 MiB are missing" in capsys.readouterr().out
    main(["plan", folder, "--memory", "0.325"])
    assert "Not even one request of 2048 tokens fits; --max-model-len may be at most " in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--memory", "0"], "--memory is 0.0, but must be positive"),
        (["--memory", "1", "--gpu-memory", "1"], "--memory is 1.0, but must be unset when"),
        (["--gpu-memory-utilization", "1.5"], "--gpu-memory-utilization is 1.5, but must be in"),
        (
            ["--tensor-parallel-size", "3"],
            "--tensor-parallel-size is 3, but must divide the model's",
        ),
        (
            ["--max-model-len", "9999"],
            "--max-model-len is 9999, but the model's own context is 2048",
        ),
    ],
)
def test_what_cannot_be_is_named(
    folder: str, flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", folder, *flags]) != 0
    assert f"pagemesh plan: {sentence}" in capsys.readouterr().err


def test_without_hardware_it_is_this_machine(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", folder]) == 0
    assert " requests of 2048 tokens fit at once" in capsys.readouterr().out


def test_an_encoder_keeps_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"architectures": ["BertModel"], "vocab_size": 30522}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    assert main(["plan", str(tmp_path), "--memory", "1", "--max-num-batched-tokens", "100"]) == 0
    assert (
        capsys.readouterr().out
        == f"""\
{tmp_path} (BertModel) on a CPU with 1.00 GiB

  weights          0.41 GiB   108.9 million parameters, float32
  tables            0.0 MiB   of positions, and what is kept twice
  runtime          0.30 GiB
  activations       8.2 MiB   of a step of 256 tokens, 64 requests
  KV cache          7.5 MiB   1280 tokens, float32

KV of a token takes 6 KiB: of one layer at a time, for one step.
Prompts of up to 256 tokens are computed whole, 256 tokens in a step.
"""
    )
    assert main(["plan", str(tmp_path), "--memory", "0.5"]) == 0
    assert "The model does not fit: " in capsys.readouterr().out


def test_a_model_that_transformers_runs_is_planned_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["plan", str(tmp_path), "--memory", "1"]) == 0
    assert (
        capsys.readouterr().out
        == f"""\
{tmp_path} (GPT2LMHeadModel) on a CPU with 1.00 GiB

  weights          0.23 GiB   124.4 million parameters, bfloat16
  tables            0.0 MiB   of positions, and what is kept twice
  runtime          0.30 GiB
  activations      92.1 MiB   of a step of 512 tokens, 64 requests
  KV cache         0.38 GiB   11008 tokens, bfloat16

KV of a token takes 36 KiB.
10 requests of 1024 tokens fit at once, or 11008 tokens in 688 blocks of 16.
"""
    )


@pytest.mark.parametrize("is_checkpoint", [False, True], ids=["while loading", "checkpoint"])
def test_a_quantised_model_that_transformers_runs_is_planned_as_a_dense_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_checkpoint: bool
) -> None:
    config: dict[str, Any] = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
    form = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    config |= {"quantization_config": form} if is_checkpoint else {}
    (tmp_path / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    flags = [] if is_checkpoint else ["--quantization", "int4"]
    assert main(["plan", str(tmp_path), "--memory", "1", *flags]) == 0
    told = "124.4 million parameters, bfloat16, quantised by {}, but counted as dense"
    name = "gptq" if is_checkpoint else "int4"
    assert f"  weights          0.23 GiB   {told.format(name)}" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [["--memory", "1"], ["--gpu-memory", "2"]])
def test_weights_that_are_quantised_while_loading_are_planned_packed(
    folder: str, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    assert main(["plan", folder, "--quantization", "int4", *flags]) == 0
    told = capsys.readouterr().out.splitlines()
    said = "  weights           2.6 MiB   4.1 million parameters, float32, quantised by int4"
    assert said in told
    assert main(["plan", folder, "--quantization", "int4", *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["quantization"] == "int4"


def test_what_is_left_as_it_is_while_loading_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "vocab_size": 100}
    config |= {"hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 2, "max_position_embeddings": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    left = ["embed (looked up)", "layers.*.down.weight (80 inputs are no groups of 32)"]
    for way, told in (("int4", left), ("int8", left[:1]), (None, None)):
        flags = ["--memory", "1"] + (["--quantization", way] if way else [])
        assert main(["plan", str(tmp_path), *flags]) == 0
        lines = capsys.readouterr().out.splitlines()
        found = [line for line in lines if line.startswith("Not quantised: ")]
        assert found == ([f"Not quantised: {', '.join(told)}."] if told else [])
        assert main(["plan", str(tmp_path), *flags, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["left_dense"] == told


@pytest.mark.parametrize(
    "flags",
    [
        ["--gguf-file", "small.gguf"],
        ["--gguf_file=small.gguf", "--load-format", "gguf", "--quantization=gguf"],
    ],
)
def test_a_gguf_file_may_be_named_apart_as_for_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    path = write_small(tmp_path / "small.gguf")
    assert main(["plan", str(path), "--memory", "1", "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert expected["quantization"] == "gguf"
    assert main(["plan", str(tmp_path), "--memory", "1", *flags, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == expected
    assert printed.err.count("pagemesh plan: --load-format gguf: ") == ("--load-format" in flags)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--load-format", "gguf"], "--load-format is gguf, but "),
        (["--load-format", "dummy"], "--load-format dummy is not taken: "),
        (["--gguf-file"], "--gguf-file needs a value"),
    ],
)
def test_what_serve_refuses_of_a_file_plan_refuses(
    folder: str, capsys: pytest.CaptureFixture[str], flags: list[str], sentence: str
) -> None:
    assert main(["plan", folder, "--memory", "1", *flags]) != 0
    assert capsys.readouterr().err.startswith(f"pagemesh plan: {sentence}")


@pytest.mark.parametrize("command", ["plan", "up"])
def test_a_way_of_quantising_that_there_is_not_is_refused(
    folder: str, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, "--model", folder, "--quantization", "int3"]) != 0
    assert "--quantization is 'int3', but must be one of awq, " in capsys.readouterr().err
