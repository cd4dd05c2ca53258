"""Tokens of quantised checkpoints: those of dense ones of the numbers that they stand for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pagemesh.kernels.linear.packed import Codebook, GroupInt
from pagemesh.kernels.linear.packed_parts import form_of
from pagemesh.llm import LLM, SamplingParams
from tests.identity.byte_tokenizer import write_tokenizer
from tests.identity.checkpoints import RECIPES, make_checkpoint
from tests.support.quantised_checkpoints import FORMATS, MXFP4, WEIGHTS_ALONE, quantise
from tests.support.quantising import (
    Format,
)
from tests.unit.models.model_folder import write_model_of
from tests.unit.models.quantization.test_quantised_formats import SHAPES, read_weights


def answers(source: Path, folder: Path, form: Format) -> list[list[tuple[int, ...]]]:
    """Of a quantised checkpoint, and of the floats that it stands for."""
    quantise(source, folder / "quantised", folder / "dense", form)
    found = []
    for each in (folder / "quantised", folder / "dense"):
        write_tokenizer(each)
        with LLM(each, dtype="bfloat16", kv_cache_memory=0.01, threads=1) as llm:
            outputs = llm.generate(
                [{"prompt_token_ids": [5, 6, 7, 8]}, {"prompt_token_ids": [90]}],
                SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
                use_tqdm=False,
            )
        found.append([output.outputs[0].token_ids for output in outputs])
    return found


@pytest.mark.product(sample=5)
@pytest.mark.parametrize("name", WEIGHTS_ALONE)
def test_tokens_are_those_of_the_floats(tmp_path: Path, name: str) -> None:
    sizes = SHAPES | {"vocab_size": 131, "max_position_embeddings": 64, "eos_token_id": None}
    quantised, dense = answers(write_model_of(tmp_path, **sizes), tmp_path, FORMATS[name])
    assert quantised == dense
    assert len({*dense[0], *dense[1]}) > 3


def test_some_stay_packed_on_every_cpu(tmp_path: Path) -> None:
    """Groups of 8, which most of these have, do not."""
    packed = [f"{method}, groups of 16" for method in ("AWQ", "GPTQ", "W4A16")]
    for name, is_packed in [("AWQ", False), ("W8A16", True), *((each, True) for each in packed)]:
        quantise(write_model_of(tmp_path, **SHAPES), tmp_path, tmp_path / "floats", FORMATS[name])
        weight = read_weights(tmp_path, torch.bfloat16)["layers.0.up.weight"]
        assert isinstance(weight, GroupInt)
        assert (form_of(weight, "pairs") is not None) == is_packed, name


def test_gpt_oss_runs_from_its_experts_of_4_bits(tmp_path: Path) -> None:
    recipe = RECIPES["GPT-OSS"]
    settings = recipe.settings | {"hidden_size": 64, "intermediate_size": 96}
    make_checkpoint(tmp_path, replace(recipe, settings=settings))
    quantised, dense = answers(tmp_path, tmp_path, MXFP4)
    assert quantised == dense
    assert len({*dense[0], *dense[1]}) > 3
    weights = read_weights(tmp_path / "quantised", torch.bfloat16)
    ups = weights["layers.0.experts.up.weight"]
    assert isinstance(ups, Codebook)
    assert (ups.shape, ups.num_bytes) == ((5, 192, 64), 5 * 192 * (32 + 2))
