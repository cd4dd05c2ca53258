from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pagemesh.errors import ConfigError
from pagemesh.models.transformers_backend.judge import (
    JudgedModel,
    check_class,
    check_rope,
    judge,
)
from pagemesh.models.transformers_backend.read import model_class
from tests.support.late_imports import transformers
from tests.unit.models.transformers_backend.tiny_models import make_config, make_model

GQA = {"num_key_value_heads": 2}


def judged(name: str, max_model_len: int = 64, **settings: Any) -> JudgedModel:
    return judge(make_model(name, **settings), max_model_len, torch.float32, "config.json")


def test_a_model_is_known_by_what_its_attention_asks_for() -> None:
    found = judged("Starcoder2Config", **GQA, sliding_window=9)
    shape = found.shape
    assert (shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.head_dim) == (2, 4, 2, 8)
    assert shape.vocab_size == 61
    assert [(layer.scale, layer.sliding_window) for layer in found.layers] == [(8**-0.5, 9)] * 2
    assert all(layer.soft_cap is None and layer.sinks is None for layer in found.layers)


def test_windows_caps_and_scales_of_layers() -> None:
    found = judged(
        "Gemma2Config",
        **GQA,
        head_dim=12,
        sliding_window=9,
        query_pre_attn_scalar=25,
        attn_logit_softcapping=7.0,
    )
    assert [layer.sliding_window for layer in found.layers] == [9, None]
    assert [(layer.scale, layer.soft_cap) for layer in found.layers] == [(0.2, 7.0)] * 2


def test_a_window_that_no_context_exceeds_is_left_out() -> None:
    found = judged("Starcoder2Config", max_model_len=9, **GQA, sliding_window=9)
    assert [layer.sliding_window for layer in found.layers] == [None, None]


def test_sinks_of_layers() -> None:
    model = make_model("GptOssConfig", **GQA, head_dim=8, num_local_experts=5)
    found = judge(model, 64, torch.float32, "config.json")
    for layer, features in zip(model.model.layers, found.layers, strict=True):
        assert features.sinks is not None
        assert torch.equal(features.sinks, layer.self_attn.sinks)


def test_heads_whose_values_are_shorter_than_their_keys() -> None:
    found = judged(
        "DeepseekV2Config",
        kv_lora_rank=10,
        q_lora_rank=14,
        qk_nope_head_dim=6,
        qk_rope_head_dim=8,
        head_dim=8,
        v_head_dim=5,
        first_k_dense_replace=2,
    )
    assert (found.shape.num_kv_heads, found.shape.head_dim) == (4, 14)


def make_lfm2(**settings: Any) -> Any:
    return make_model("Lfm2Config", **GQA, layer_types=["conv", "full_attention"], **settings)


def make_poisoned() -> Any:
    model = make_model("LlamaConfig")
    with torch.no_grad():
        model.model.norm.weight[3] = torch.nan
    return model


def make_changing_heads() -> Any:
    model = make_model("LlamaConfig")
    attention = model.model.layers[1].self_attn
    for projection in (attention.k_proj, attention.v_proj):
        projection.weight = torch.nn.Parameter(projection.weight[:16])
    attention.num_key_value_groups = 2
    return model


REFUSED: dict[str, Callable[[], Any]] = {
    "has attention in which position 0 sees position 1": lambda: make_model("BertConfig"),
    "has attention in which position 16 does not see position 1": lambda: make_model(
        "Llama4TextConfig", **GQA, head_dim=8, attention_chunk_size=16, num_local_experts=2
    ),
    "gives other logits when its prompts are cut and batched": make_lfm2,
    "has weights that give logits that are not finite": make_poisoned,
    "has layers of different heads: 4 / 4 of 8 and 4 / 2 of 8": make_changing_heads,
    "attends by a mask of its own": lambda: make_model("DogeConfig", **GQA, keep_window_size=1),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_paged_kv_does_not_have_is_refused(why: str) -> None:
    model: Any = REFUSED[why]()
    with pytest.raises(ConfigError) as caught:
        judge(model, 64, torch.float32, "config.json")
    message = str(caught.value)
    assert message.startswith(f"config.json names {type(model).__name__}, which {why}")
    assert message.endswith("it cannot be served over paged KV")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_in_short_types_rounding_is_named_as_another_reason(dtype: torch.dtype) -> None:
    with pytest.raises(
        ConfigError, match=rf"rounding of {dtype}, which --dtype float32 would tell"
    ):
        judge(make_lfm2().to(dtype), 64, dtype, "config.json")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_rounding_of_short_types_alone_is_no_reason(dtype: torch.dtype) -> None:
    judge(
        make_model("GptOssConfig", **GQA, head_dim=8, num_local_experts=5).to(dtype), 64, dtype, "c"
    )


class Failing(torch.nn.Module):
    def set_attn_implementation(self, name: str) -> None:
        pass

    def forward(self, **inputs: Any) -> None:
        raise KeyError("cache_params\nand more")


def test_whatever_a_models_code_raises_is_a_refusal() -> None:
    with pytest.raises(ConfigError, match=r"names Failing, which fails: KeyError: 'cache_params"):
        judge(Failing(), 64, torch.float32, "config.json")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("MambaConfig", "MambaForCausalLM, which keeps other state than keys and values"),
        ("BloomConfig", "BloomForCausalLM, which does not use transformers' attention interface"),
        ("BartConfig", "BartForCausalLM, which is an encoder with a decoder"),
    ],
)
def test_classes_that_cannot_be_served_are_refused_before_their_weights_are_read(
    config: str, message: str
) -> None:
    made = make_config(config)
    with pytest.raises(ConfigError, match=message):
        check_class(model_class(made), made, "config.json")


def test_a_model_without_a_causal_class_is_refused() -> None:
    make: Any = transformers.ViTConfig
    config = make()
    with pytest.raises(ConfigError, match="transformers has no causal language model of this kind"):
        check_class(model_class(config), config, "config.json")


def test_another_head_on_the_same_body_is_refused() -> None:
    config = make_config("LlamaConfig")
    config.architectures = ["LlamaForSequenceClassification"]
    with pytest.raises(ConfigError, match=r"'LlamaForSequenceClassification', but .* as LlamaFor"):
        check_class(model_class(config), config, "config.json")


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_frequencies_that_follow_the_longest_sequence_are_refused(kind: str) -> None:
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
        rope["original_max_position_embeddings"] = 64
    config = make_config("LlamaConfig", rope_parameters=rope)
    check_rope(config, 64, "config.json")
    with pytest.raises(ConfigError, match=f"{kind}.* --max-model-len to at most 64"):
        check_rope(config, 65, "config.json")
