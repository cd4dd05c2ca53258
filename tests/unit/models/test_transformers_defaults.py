"""What config.json leaves out is what transformers would take for it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from pagemesh.models.config_json import ConfigJson
from pagemesh.models.registry import find_architecture
from pagemesh.models.spec import DecoderSpec
from tests.support.late_imports import transformers

# What pagemesh insists on, because no two models agree on it.
SIZES = {
    "vocab_size": 50,
    "hidden_size": 1024,
    "intermediate_size": 40,
    "num_hidden_layers": 7,
    "num_attention_heads": 32,
}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096}


def make_spec(values: dict[str, Any]) -> DecoderSpec:
    config = ConfigJson(values, "config.json")
    architecture = find_architecture(config)
    assert architecture is not None
    return architecture.make_spec(config)


@pytest.mark.parametrize(
    ("name", "config_class", "values"),
    [
        ("LlamaForCausalLM", "LlamaConfig", SIZES),
        ("MistralForCausalLM", "MistralConfig", SIZES),
        ("Qwen2ForCausalLM", "Qwen2Config", SIZES),
        ("Qwen2ForCausalLM", "Qwen2Config", SIZES | {"use_sliding_window": True}),
        ("Qwen3ForCausalLM", "Qwen3Config", SIZES),
        ("Gemma2ForCausalLM", "Gemma2Config", {}),
        ("Gemma3ForCausalLM", "Gemma3TextConfig", {}),
        ("Gemma3ForConditionalGeneration", "Gemma3Config", {"text_config": {}}),
        ("Phi3ForCausalLM", "Phi3Config", SIZES),
        ("FalconForCausalLM", "FalconConfig", SIZES),
        ("FalconForCausalLM", "FalconConfig", SIZES | {"new_decoder_architecture": True}),
        ("FalconForCausalLM", "FalconConfig", SIZES | {"alibi": True, "multi_query": False}),
        ("MixtralForCausalLM", "MixtralConfig", SIZES),
        ("Qwen2MoeForCausalLM", "Qwen2MoeConfig", SIZES),
        ("Qwen2MoeForCausalLM", "Qwen2MoeConfig", SIZES | {"use_sliding_window": True}),
        ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", SIZES),
        ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", SIZES | {"use_sliding_window": True}),
        ("GptOssForCausalLM", "GptOssConfig", SIZES | {"rope_parameters": YARN}),
        ("BertModel", "BertConfig", {"vocab_size": 50}),
        ("RobertaModel", "RobertaConfig", {"vocab_size": 50}),
        ("XLMRobertaForMaskedLM", "XLMRobertaConfig", {"vocab_size": 50}),
        ("DistilBertModel", "DistilBertConfig", {"vocab_size": 50}),
        ("ModernBertModel", "ModernBertConfig", {"vocab_size": 50}),
        ("ModernBertModel", "ModernBertConfig", {"vocab_size": 50, "global_rope_theta": 5.0}),
        ("Qwen3ForCausalLM", "Qwen3Config", SIZES | {"rope_scaling": YARN, "rope_theta": 1e6}),
    ],
)
def test_a_short_config_means_what_transformers_writes_for_it(
    name: str, config_class: str, values: dict[str, Any]
) -> None:
    short = make_spec(values | {"architectures": [name]})
    # transformers fills in what it is given.
    written = getattr(transformers, config_class)(**deepcopy(values)).to_dict()
    assert short == make_spec(written | {"architectures": [name]})
