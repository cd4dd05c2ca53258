"""Answers of models of transformers, and with which weights they are computed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from structlog.testing import capture_logs

from pagemesh.config import ModelConfig
from pagemesh.kernels.linear import make_linear
from pagemesh.llm import LLM, SamplingParams
from pagemesh.models.loader import load_model
from pagemesh.models.transformers_backend import model as causal_model
from tests.identity.byte_tokenizer import write_tokenizer
from tests.support.quantised_checkpoints import FORMATS, quantise
from tests.unit.models.transformers_backend.tiny_models import make_model

WIDE: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_key_value_heads": 2,
}


class Answer(NamedTuple):
    tokens: list[tuple[int, ...]]
    log: Mapping[str, Any]
    """The line about quantised weights."""
    multiplied: list[str]
    """Kinds of the weights that rows are multiplied with."""


def answer(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Answer:
    multiplied = []

    def note(weight: Any, bias: torch.Tensor | None) -> Any:
        multiplied.append(type(weight).__name__)
        return make_linear(weight, bias)

    monkeypatch.setattr(causal_model, "make_linear", note)
    write_tokenizer(folder)
    settings = {"dtype": "bfloat16", "model_impl": "transformers"} | settings
    with (
        capture_logs() as logs,
        LLM(folder, kv_cache_memory=0.01, threads=1, **settings) as llm,
    ):
        outputs = llm.generate(
            [{"prompt_token_ids": [5, 6, 7, 8]}, {"prompt_token_ids": [90]}],
            SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
            use_tqdm=False,
        )
    assert not [entry for entry in logs if entry["event"] == "torch's matmuls"]
    monkeypatch.setattr(causal_model, "make_linear", make_linear)
    told = [entry for entry in logs if entry["event"] == "weights are quantised"]
    tokens = [tuple(output.outputs[0].token_ids) for output in outputs]
    return Answer(tokens, told[0] if told else {}, multiplied)


def save(folder: Path, name: str, **settings: Any) -> Path:
    make_model(name, **settings).to(torch.bfloat16).save_pretrained(folder)
    return folder


def load(folder: Path, **settings: Any) -> Any:
    return load_model(ModelConfig(str(folder), model_impl="transformers", **settings))


def quantised_llama(folder: Path, name: str = "W8A16", **settings: Any) -> Path:
    save(folder, "LlamaConfig", **WIDE | settings)
    quantise(folder, folder / "quantised", folder / "dense", FORMATS[name])
    return folder / "quantised"
