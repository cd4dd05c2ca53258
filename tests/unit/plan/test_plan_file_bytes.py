"""How large a model's files are in a plan: as their headers have them, or as config.json says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from pagemesh.cli.main import main
from pagemesh.cli.plan import plan_model
from pagemesh.cli.settings import PlanConfig
from pagemesh.gguf.model import open_gguf
from tests.support.quantised_checkpoints import FORMATS, quantise
from tests.unit.gguf.small_file import write_small
from tests.unit.models.model_folder import write_config, write_model_of

SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}
PACKED = 3 * 256 * 256 + 256 * 256 + 2 * 384 * 256 + 256 * 384
"""Numbers of the matrices of the one layer."""
KEPT = 2 * 512 * 256 + 3 * 256
"""Of both tables and the norms."""
TRAFFIC: tuple[str, ...] = ("--request-rate", "1", "--num-prompts", "4", "--prompt-tokens", "20")
TRAFFIC += (
    "--output-tokens",
    "4",
    "--prefix-tokens",
    "0",
    "--goodput",
    "e2el:60000",
    "--spare",
    "0",
)


def file_bytes(model: Path, **settings: Any) -> int:
    return plan_model(PlanConfig(model=str(model), memory=4, **settings)).file_bytes


def tensor_bytes(folder: Path) -> int:
    return sum(each.nbytes for each in load_file(folder / "model.safetensors").values())


def quantised(folder: Path, name: str) -> Path:
    source = folder / "source"
    source.mkdir()
    quantise(write_model_of(source, **SIZES), folder / "quantised", folder / "dense", FORMATS[name])
    return folder / "quantised"


@pytest.mark.parametrize("name", ["AWQ", "GPTQ, act-order", "FP8", "NF4", "W8A8"])
def test_a_quantised_checkpoints_files_are_as_large_as_its_tensors(
    tmp_path: Path, name: str
) -> None:
    folder = quantised(tmp_path, name)
    assert file_bytes(folder, dtype="bfloat16") == tensor_bytes(folder)


def test_a_gguf_file_is_as_large_as_its_tensors(tmp_path: Path) -> None:
    path = write_small(tmp_path / "small.gguf")
    expected = sum(each.end - each.begin for each in open_gguf(path).tensors.values())
    assert file_bytes(path, dtype="bfloat16") == expected


@pytest.mark.parametrize("quantization", [None, "int4"])
def test_files_of_a_dense_checkpoint_stay_dense(tmp_path: Path, quantization: str | None) -> None:
    folder = write_model_of(tmp_path, **SIZES)
    settings = {"dtype": "bfloat16", "quantization": quantization}
    # In float32, whatever the planned type is.
    assert file_bytes(folder, **settings) == tensor_bytes(folder) == 4 * (PACKED + KEPT)
    (folder / "model.safetensors").unlink()
    assert file_bytes(folder, **settings) == 2 * (PACKED + KEPT)


@pytest.mark.parametrize("name", ["AWQ", "GPTQ, act-order"])
def test_without_weights_files_are_as_large_as_the_settings_say(tmp_path: Path, name: str) -> None:
    write_config(tmp_path, **SIZES, quantization_config=FORMATS[name].config)
    # With a scale of 16 bits to 32 inputs.
    assert file_bytes(tmp_path, dtype="bfloat16") == PACKED * 9 // 16 + 2 * KEPT


def test_of_a_model_that_transformers_runs_headers_are_asked_too(tmp_path: Path) -> None:
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "dtype": "bfloat16"}
    form = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": form}))
    # Nobody knows the names of its modules.
    assert file_bytes(tmp_path) == 2 * 124_439_808
    (tmp_path / "other").mkdir()
    (write_model_of(tmp_path / "other") / "model.safetensors").rename(
        tmp_path / "model.safetensors"
    )
    assert file_bytes(tmp_path) == tensor_bytes(tmp_path)


def test_volumes_and_pods_have_room_for_the_files_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = quantised(tmp_path, "AWQ")
    flags = ("--gpu", "l4", "--dtype", "bfloat16", *TRAFFIC, "--json")
    assert main(["plan", str(folder), *flags]) == 0
    around = json.loads(capsys.readouterr().out)["deployment"]["surroundings"]
    assert around["model_bytes"] == tensor_bytes(folder) < 2 * (PACKED + KEPT)
