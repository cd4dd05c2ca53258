from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pagemesh.config import ModelConfig
from pagemesh.core.kv import KvLayout
from pagemesh.errors import ConfigError
from pagemesh.models.loader import LoadedModel, load_model
from tests.unit.models.model_folder import make_tensors, write_model


def load(folder: Path, **settings: Any) -> LoadedModel:
    return load_model(ModelConfig(model=str(folder), **settings))


def test_facts_of_a_loaded_model(tmp_path: Path) -> None:
    model = load(write_model(tmp_path))
    assert model.dtype == torch.float32
    assert model.max_model_len == 32
    assert model.vocab_size == 11
    assert model.eos_token_ids == (3,)
    assert model.block_layout(16) == KvLayout.uniform(16, 1, 1, 4, "float32")
    assert len(model.fingerprint) == 32
    assert model.arithmetic == "cpu-fma-float32"


@pytest.mark.parametrize(
    ("config", "setting", "expected"),
    [
        ({}, "auto", torch.float32),
        ({"dtype": "bfloat16"}, "auto", torch.bfloat16),
        ({"torch_dtype": "float16"}, "auto", torch.float16),
        ({"dtype": "bfloat16", "torch_dtype": "float16"}, "auto", torch.bfloat16),
        ({"dtype": "bfloat16"}, "float32", torch.float32),
    ],
)
def test_type_of_weights(
    tmp_path: Path, config: dict[str, Any], setting: str, expected: torch.dtype
) -> None:
    model = load(write_model(tmp_path, **config), dtype=setting)
    assert model.dtype == expected
    hidden = torch.zeros(1, 8, dtype=expected)
    assert model.decoder.logits(hidden).dtype == expected


def test_types_have_different_fingerprints(tmp_path: Path) -> None:
    write_model(tmp_path)
    assert load(tmp_path).fingerprint != load(tmp_path, dtype="bfloat16").fingerprint


def test_the_context_may_be_shortened(tmp_path: Path) -> None:
    assert load(write_model(tmp_path), max_model_len=7).max_model_len == 7


def test_the_context_may_be_lengthened_where_frequencies_can_be_stretched(tmp_path: Path) -> None:
    dynamic = {"type": "dynamic", "factor": 2.0}
    write_model(tmp_path, rope_scaling=dynamic)
    plain = load(tmp_path)
    longer = load(tmp_path, max_model_len=64)
    assert (plain.max_model_len, longer.max_model_len) == (32, 64)
    # Keys are turned by other angles then.
    assert longer.fingerprint != plain.fingerprint
    assert load(tmp_path, max_model_len=20).fingerprint == plain.fingerprint
    with pytest.raises(
        ConfigError, match="--max-model-len is 65, but the model's own context is 64"
    ):
        load(tmp_path, max_model_len=65)


def test_the_context_may_not_be_lengthened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write_model(tmp_path), max_model_len=33)
    assert caught.value.message == "--max-model-len is 33, but the model's own context is 32"


def test_generation_config_corrects_the_end_tokens(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert load(tmp_path).eos_token_ids == (5, 6)


def test_a_generation_config_without_end_tokens_leaves_those_of_the_model(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "generation_config.json").write_text("{}")
    assert load(tmp_path).eos_token_ids == (3,)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config.json": {"eos_token": "b"}}, (3, 8)),
        ({"tokenizer_config.json": {"eos_token": {"content": "<end>"}}}, (3, 7)),
        ({"special_tokens_map.json": {"eos_token": "<end>"}}, (3, 7)),
        (
            {
                "tokenizer_config.json": {
                    "eos_token": "<end>",
                    "added_tokens_decoder": {"5": {"content": "x"}, "6": {"content": "<end>"}},
                }
            },
            (3, 6),
        ),
        ({"tokenizer_config.json": {"eos_token": "<same>"}}, (3,)),
        # No token, and one that the model has no embedding for.
        ({"tokenizer_config.json": {"eos_token": "nothing"}}, (3,)),
        ({"tokenizer_config.json": {"eos_token": "<far>"}}, (3,)),
        ({"tokenizer_config.json": {"eos_token": None}}, (3,)),
    ],
)
def test_the_tokenizers_own_end_token_ends_an_answer_too(
    tmp_path: Path, files: dict[str, Any], expected: tuple[int, ...]
) -> None:
    write_model(tmp_path)
    added = [{"id": 7, "content": "<end>"}, {"id": 3, "content": "<same>"}]
    added += [{"id": 11, "content": "<far>"}]
    tokenizer = {"added_tokens": added, "model": {"type": "BPE", "vocab": {"a": 0, "b": 8}}}
    for name, content in ({"tokenizer.json": tokenizer} | files).items():
        (tmp_path / name).write_text(json.dumps(content))
    assert load(tmp_path).eos_token_ids == expected


def test_a_model_may_have_no_end_tokens(tmp_path: Path) -> None:
    assert load(write_model(tmp_path, eos_token_id=None)).eos_token_ids == ()


def test_a_tied_model_uses_its_embedding_as_output(tmp_path: Path) -> None:
    tensors = make_tensors()
    del tensors["lm_head.weight"]
    model = load(write_model(tmp_path, tensors, tie_word_embeddings=True))
    hidden = torch.eye(8)
    expected = tensors["model.embed_tokens.weight"].T
    torch.testing.assert_close(model.decoder.logits(hidden), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float8_e4m3fn"}, "dtype = 'float8_e4m3fn', but it must be \"float32\" or"),
        ({"eos_token_id": [3, 11]}, "[3, 11], but it must be below the model's vocab_size of 11"),
        (
            {"eos_token_id": ["1"] * 1000},
            f"eos_token_id = {str(['1'] * 1000)[:100]}…, but it must be",
        ),
        ({"eos_token_id": "end"}, "eos_token_id = 'end', but it must be a token id or a list"),
        ({"architectures": ["ElectraModel"], "model_type": "electra"}, "'ElectraModel', but"),
        ({"rms_norm_eps": 10**400}, "but it must be a positive number"),
        ({"hidden_size": 16}, "model.embed_tokens.weight with shape [11, 8], but config.json asks"),
        ({"num_hidden_layers": 2}, "lacks the tensor model.layers.1.input_layernorm.weight"),
        ({"tie_word_embeddings": True, "vocab_size": 12}, "with shape [11, 8]"),
        ({"attention_bias": True}, "lacks the tensor model.layers.0.self_attn.q_proj.bias"),
    ],
)
def test_a_folder_that_does_not_fit_together_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write_model(tmp_path, **change))
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ('{"a":' + "[" * 200_000, "is not valid JSON: it is nested too deep"),
        ("[]", "holds list, but must hold a JSON object"),
    ],
)
def test_a_broken_config_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        load(tmp_path)


def test_threads_are_set_for_the_process(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        load(write_model(tmp_path), threads=3)
        assert torch.get_num_threads() == 3
        load(tmp_path, threads=0)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.0.self_attn.v_proj.weight"])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, name: str, value: float) -> None:
    tensors = make_tensors()
    tensors[name][3, 5] = value
    with pytest.raises(ConfigError) as caught:
        load(write_model(tmp_path, tensors))
    assert caught.value.message.endswith(
        f"model.safetensors has the tensor {name} with values that are NaN or infinite"
    )


def test_weights_that_a_type_cannot_hold_are_refused(tmp_path: Path) -> None:
    tensors = make_tensors()
    tensors["lm_head.weight"][3, 5] = 1e5
    write_model(tmp_path, tensors)
    load(tmp_path, dtype="bfloat16")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, dtype="float16")
    assert caught.value.message.endswith(
        "the tensor lm_head.weight with values that float16 cannot hold: choose another --dtype"
    )


def test_large_weights_whose_sum_overflows_are_no_error(tmp_path: Path) -> None:
    tensors = make_tensors(**{"lm_head.weight": torch.full((11, 8), 3e38)})
    load(write_model(tmp_path, tensors))


@pytest.mark.parametrize(
    ("config", "setting", "message"),
    [
        ({}, "float16", "--dtype is float16, in which this architecture overflows: choose"),
        ({"torch_dtype": "float16"}, "auto", "has torch_dtype, which is float16, in which"),
    ],
)
def test_a_type_in_which_an_architecture_overflows_is_refused(
    tmp_path: Path, config: dict[str, Any], setting: str, message: str
) -> None:
    write_model(tmp_path, architectures=["Gemma2ForCausalLM"], **config)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, dtype=setting)
    assert message in caught.value.message
    assert caught.value.message.endswith("choose --dtype float32 or bfloat16")
