"""Vectors of quantised encoders: those of dense ones of the numbers that their weights stand for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pagemesh.config import ModelConfig
from pagemesh.llm import LLM
from pagemesh.models.loader import load_model
from pagemesh.models.quantization.ways import WayName
from tests.identity.encoder_checkpoints import RECIPES, make_encoder
from tests.support.quantised_checkpoints import FORMATS, quantise
from tests.unit.models.quantization.test_while_loading import write_twin

NAMES = ("BERT", "RoBERTa mean", "XLM-RoBERTa", "DistilBERT mean", "ModernBERT mean")
PROMPTS: tuple[Any, ...] = ({"prompt_token_ids": [5, 6, 7, 8]}, {"prompt_token_ids": [9]})


def vectors(folder: Path, quantization: str | None = None) -> list[tuple[float, ...]]:
    with LLM(str(folder), dtype="bfloat16", threads=1, quantization=quantization) as llm:
        return [output.outputs.embedding for output in llm.embed(list(PROMPTS), use_tqdm=False)]


@pytest.mark.product(sample=3)
@pytest.mark.parametrize("form", ["AWQ", "GPTQ, act-order", "W8A16", "FP8", "FP8 in blocks"])
@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_those_of_the_floats(tmp_path: Path, name: str, form: str) -> None:
    source = tmp_path / "source"
    make_encoder(source, RECIPES[name])
    folders = tmp_path / "quantised", tmp_path / "dense"
    assert len(quantise(source, *folders, FORMATS[form])) > 6
    for folder in folders:
        for file in source.iterdir():
            if file.name != "config.json" and file.suffix != ".safetensors":
                copy = shutil.copytree if file.is_dir() else shutil.copy
                copy(file, folder / file.name)
    quantised, dense = map(vectors, folders)
    assert quantised == dense
    assert (
        load_model(ModelConfig(str(folders[0]))).quantization
        == FORMATS[form].config["quant_method"]
    )


@pytest.mark.product(sample=2)
@pytest.mark.parametrize("way", ["fp8", "int8"])
@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_those_of_what_is_rounded_while_loading(
    tmp_path: Path, name: str, way: WayName
) -> None:
    folder = tmp_path / "dense"
    make_encoder(folder, RECIPES[name])
    assert write_twin(folder, tmp_path / "twin", way) > 6
    quantised = vectors(folder, way)
    assert quantised == vectors(tmp_path / "twin")
    assert quantised != vectors(folder)
