"""Answers of models of transformers, and with which weights they are computed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from structlog.testing import capture_logs

from pagemesh.config import ModelConfig
from pagemesh.kernels.experts import Stack, make_experts
from pagemesh.kernels.linear import make_linear
from pagemesh.llm import LLM, SamplingParams
from pagemesh.models.loader import load_model
from pagemesh.models.transformers_backend import experts as mixtures
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


_EXPERTS: dict[str, Any] = WIDE | {"num_local_experts": 4, "num_experts_per_tok": 2}

MIXTURES: dict[str, dict[str, Any]] = {
    "MixtralConfig": _EXPERTS,
    # Gates among ups, inputs before outputs.
    "GptOssConfig": _EXPERTS | {"head_dim": 16},
    # Experts that all tokens use, and a first layer without any.
    "DeepseekV3Config": WIDE
    | {
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 32,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "n_group": 1,
        "topk_group": 1,
    },
}


class Answer(NamedTuple):
    tokens: list[tuple[int, ...]]
    log: Mapping[str, Any]
    """The line about quantised weights."""
    multiplied: list[str]
    """Kinds of the weights of linear modules."""
    experts: list[str]
    """Kinds of those of experts: gates and ups of a layer, then its downs."""


def answer(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Answer:
    multiplied: list[str] = []
    experts: list[str] = []

    def note_experts(ups: Stack, downs: Stack, gate: Any) -> Any:
        experts.extend(type(stack.weight).__name__ for stack in (ups, downs))
        return make_experts(ups, downs, gate)

    def note(weight: Any, bias: torch.Tensor | None) -> Any:
        multiplied.append(type(weight).__name__)
        return make_linear(weight, bias)

    monkeypatch.setattr(causal_model, "make_linear", note)
    monkeypatch.setattr(mixtures, "make_experts", note_experts)
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
    monkeypatch.setattr(mixtures, "make_experts", make_experts)
    told = [entry for entry in logs if entry["event"] == "weights are quantised"]
    tokens = [tuple(output.outputs[0].token_ids) for output in outputs]
    return Answer(tokens, told[0] if told else {}, multiplied, experts)


def save(folder: Path, name: str, **settings: Any) -> Path:
    make_model(name, **settings).to(torch.bfloat16).save_pretrained(folder)
    return folder


def load(folder: Path, **settings: Any) -> Any:
    return load_model(ModelConfig(str(folder), model_impl="transformers", **settings))


def quantised_llama(folder: Path, name: str = "W8A16", **settings: Any) -> Path:
    save(folder, "LlamaConfig", **WIDE | settings)
    quantise(folder, folder / "quantised", folder / "dense", FORMATS[name])
    return folder / "quantised"
