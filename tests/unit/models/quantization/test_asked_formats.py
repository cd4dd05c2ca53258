"""What `--quantization` may say beside which checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagemesh.config import ModelConfig
from pagemesh.models.loader import load_model
from tests.support.quantised_checkpoints import FORMATS
from tests.unit.models.model_folder import write_model_of
from tests.unit.models.quantization.test_quantised_formats import SHAPES
from tests.unit.models.quantization.test_quantised_refusals import make, refusal


@pytest.mark.parametrize(
    ("asked", "name", "told"),
    [
        ("gptq", "AWQ", "--quantization is gptq, but {where} names a checkpoint quantised by awq"),
        ("fp8", "NF4", "--quantization is fp8, but {where} names a checkpoint quantised by bits"),
        (
            "awq_marlin",
            "GPTQ",
            "--quantization is awq_marlin, but {where} names a checkpoint quantised by gptq",
        ),
        ("int4", "AWQ", "--quantization is int4, but {where} names a checkpoint quantised by awq"),
        ("int8", "FP8", "--quantization is int8, but {where} names a checkpoint quantised by fp8"),
        (
            "fbgemm_fp8",
            "FP8 in blocks",
            "--quantization is fbgemm_fp8, but {where} names a checkpoint quantised by fp8",
        ),
        (
            "fp8",
            "compressed FP8",
            "--quantization is fp8, but {where} names a checkpoint quantised by compressed-tensors",
        ),
        (
            "int8",
            "LLM.int8()",
            "--quantization is int8, but {where} names a checkpoint quantised by bitsandbytes",
        ),
    ],
)
def test_another_format_than_was_asked_for_is_refused_with_both_names(
    tmp_path: Path, asked: str, name: str, told: str
) -> None:
    folder = make(tmp_path, name)
    where = folder / "config.json"
    assert refusal(folder, quantization=asked).startswith(told.format(where=where))


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("awq", "AWQ"),
        ("awq_marlin", "AWQ"),
        ("gptq_marlin", "GPTQ"),
        ("fp8", "FP8 in blocks"),
        ("fp8", "FBGEMM FP8"),
        ("fbgemm_fp8", "FBGEMM FP8"),
        ("compressed-tensors", "W4A16"),
        ("bitsandbytes", "NF4"),
    ],
)
def test_the_checkpoints_own_format_may_be_named(tmp_path: Path, asked: str, name: str) -> None:
    folder = make(tmp_path, name)
    named = load_model(ModelConfig(str(folder), quantization=asked))
    assert named.quantization == FORMATS[name].config["quant_method"]
    assert named.fingerprint == load_model(ModelConfig(str(folder))).fingerprint


@pytest.mark.parametrize(
    ("asked", "way", "format_name"),
    [
        ("awq", "int4", "awq"),
        ("awq_marlin", "int4", "awq"),
        ("gptq", "int4", "gptq"),
        ("gptq_marlin", "int4", "gptq"),
        ("gguf", "int4", "gguf, as FOLDER/FILE.gguf or owner/name:FILE.gguf"),
        ("bitsandbytes", "int4", "bitsandbytes"),
        ("mxfp4", "int4", "mxfp4"),
        ("fbgemm_fp8", "fp8", "fbgemm_fp8"),
        ("compressed-tensors", "int8", "compressed-tensors"),
        ("torchao", "int8", "torchao"),
    ],
)
def test_a_format_beside_a_dense_checkpoint_is_refused_with_the_way_that_is_like_it(
    tmp_path: Path, asked: str, way: str, format_name: str
) -> None:
    folder = write_model_of(tmp_path, **SHAPES)
    where = f"{folder}/config.json names a checkpoint that is not quantised"
    message = (
        f"--quantization is {asked}, but {where}: --quantization {way} quantises it while it is loaded, or take one"
        f" that is quantised by {format_name}"
    )
    assert refusal(folder, quantization=asked) == message
