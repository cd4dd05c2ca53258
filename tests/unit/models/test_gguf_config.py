"""From metadata to config.json: what is refused, by key and value."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from pagemesh.errors import ConfigError
from pagemesh.gguf.documents import has_file, read_file
from pagemesh.gguf.model import open_gguf
from pagemesh.models.architectures.llama import LLAMA
from pagemesh.models.checkpoint import Checkpoint, find_sources
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.parameters import CheckpointParameters
from pagemesh.models.registry import find_architecture
from pagemesh.models.spec import DecoderSpec
from pagemesh.models.tensor_files import read_headers
from pagemesh.models.tensor_readers import GgufReader
from pagemesh.tokenizer import Tokenizer
from tests.unit.gguf.small_file import (
    ENCODER_SHAPES,
    TOKENS,
    TYPES,
    write_small,
    write_small_encoder,
)


def config(path: Path) -> Any:
    return json.loads(read_file(path / "config.json"))


def check(checkpoint: Checkpoint, spec: DecoderSpec) -> None:
    """What a loader asks of a file."""
    sources, may_ignore = find_sources(checkpoint, LLAMA, spec)
    checkpoint.check({source.tensor: source.shape for source in sources}, may_ignore)


def test_a_file_says_what_config_json_would_say(tmp_path: Path) -> None:
    assert config(write_small(tmp_path / "model.gguf")) == {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 12,
        "tie_word_embeddings": True,
        "quantization_config": {"quant_method": "gguf"},
        "dtype": "bfloat16",
        "num_hidden_layers": 1,
        "max_position_embeddings": 64,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "rms_norm_eps": pytest.approx(1e-5),
        "attention_bias": False,
        "mlp_bias": False,
        "rope_parameters": {
            "rope_theta": 10000.0,
            "partial_rotary_factor": 1.0,
            "rope_type": "default",
        },
    }


def test_a_file_has_the_files_of_a_folder_that_it_stands_for(tmp_path: Path) -> None:
    path = write_small(tmp_path / "model.gguf")
    assert has_file(path / "tokenizer.json") and not has_file(path / "modules.json")
    with pytest.raises(FileNotFoundError, match="modules"):
        read_file(path / "modules.json")
    (tmp_path / "config.json").write_text("{}")
    assert read_file(tmp_path / "config.json") == "{}"
    assert not has_file(tmp_path / "tokenizer.json")


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    assert config(write_small(tmp_path / "model.gguf"))["max_position_embeddings"] == 64
    changes = {"llama.context_length": 128, "general.name": "Another"}
    assert config(write_small(tmp_path / "model.gguf", **changes))["max_position_embeddings"] == 128


def test_one_number_for_each_layer_is_one_number_where_they_agree(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"llama.block_count": 2, "llama.feed_forward_length": [32, 32]}
    path = write_small(tmp_path / "model.gguf", **changes)
    assert config(path)["intermediate_size"] == 32


@pytest.mark.parametrize("original", [None, 0, 64, 4096])
def test_an_original_context_that_nothing_lengthens_changes_nothing(
    tmp_path: Path, original: int | None
) -> None:
    changes = {"llama.rope.scaling.original_context_length": original}
    rope = config(write_small(tmp_path / "model.gguf", **changes))["rope_parameters"]
    assert rope["rope_type"] == "default"


def test_an_original_context_may_stand_beside_a_linear_factor(tmp_path: Path) -> None:
    changes = {
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 2.0,
        "llama.rope.scaling.original_context_length": 32,
    }
    rope = config(write_small(tmp_path / "model.gguf", **changes))["rope_parameters"]
    assert (rope["rope_type"], rope["factor"]) == ("linear", 2.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama.rope.scaling.original_context_length": 63}, "llama.rope.scaling.original_context_length = 63, but it must be at least 64, since nothing says how contexts became longer"),
        ({"llama.block_count": None}, "lacks the key llama.block_count"),
        ({"llama.block_count": 10**9}, "llama.block_count = 1000000000, but it must be at most its number of tensors, 11"),
        ({"llama.block_count": "1"}, "llama.block_count = '1', but it must be an integer that is not negative"),
        ({"llama.block_count": "1" * 10**6}, f"llama.block_count = '{'1' * 99}…, but it must be an integer"),
        ({"llama.block_count": 2, "llama.feed_forward_length": [32, 64]}, "llama.feed_forward_length = an array of 2 values, but it must be one number for all layers"),
        ({"llama.feed_forward_length": [32, 32]}, "llama.feed_forward_length = an array of 2 values, but it must be one number for all layers"),
        ({"llama.feed_forward_length": ["32"]}, "llama.feed_forward_length = an array of 1 values, but it must be an integer"),
        ({"llama.vocab_size": 13}, "llama.vocab_size = 13, but it must be at most 12, the rows of token_embd.weight"),
        ({"llama.vocab_size": [12, 12]}, "llama.vocab_size = an array of 2 values, but it must be one number"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "epsilon = nan, but it must be a number"),
        ({"llama.attention.value_length": 8}, "llama.attention.value_length = 8, but it must be 16: nothing else is supported"),
        ({"llama.attention.causal": False}, "llama.attention.causal = False, but it must be True"),
        ({"llama.pooling_type": 2}, "llama.pooling_type = 2, but it must be 0 or 1 or 3: nothing else"),
        ({"llama.logit_scale": 0.5}, "llama.logit_scale = 0.5, but it must be absent: what it asks for is not supported"),
        ({"llama.rope.scaling.type": "ntk"}, "llama.rope.scaling.type = 'ntk', but it must be none, linear, yarn or"),
        ({"llama.expert_count": 10**9, "llama.expert_used_count": 2}, "llama.expert_count = 1000000000, but it must be"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_key_and_value(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write_small(tmp_path / "model.gguf", **changes)
    with pytest.raises(ConfigError) as caught:
        config(path)
    assert caught.value.message.startswith(str(path))
    assert message in caught.value.message


def test_an_encoder_says_what_its_config_json_would_say(tmp_path: Path) -> None:
    assert config(write_small_encoder(tmp_path / "model.gguf")) == {
        "architectures": ["BertModel"],
        "vocab_size": 8,
        "quantization_config": {"quant_method": "gguf"},
        "dtype": "float32",
        "num_hidden_layers": 1,
        "max_position_embeddings": 16,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "hidden_act": "gelu",
        "type_vocab_size": 2,
        # Of float32's 9.999999960041972e-13 the number that people write.
        "layer_norm_eps": 1e-12,
    }


@pytest.mark.parametrize(
    ("shape", "num_types"), [(None, 0), ((32,), 1), ((1, 32), 1), ((3, 32), 3)]
)
def test_a_table_of_token_types_may_be_a_vector_or_missing(
    tmp_path: Path, shape: tuple[int, ...] | None, num_types: int
) -> None:
    shapes = ENCODER_SHAPES | ({} if shape is None else {"token_types": shape})
    if shape is None:
        del shapes["token_types"]
    changes: dict[str, Any] = {"tokenizer.ggml.token_type_count": num_types or 1}
    path = write_small_encoder(tmp_path / "model.gguf", shapes=shapes, **changes)
    settings = ConfigJson.read(path / "config.json")
    assert settings.count("type_vocab_size", 7) == num_types
    architecture = find_architecture(settings)
    assert architecture is not None
    spec = architecture.make_spec(settings)
    with Checkpoint.open(path, torch.float32) as checkpoint:
        sources, may_ignore = find_sources(checkpoint, architecture, spec)
        checkpoint.check({source.tensor: source.shape for source in sources}, may_ignore)
        shapes_of = spec.parameter_shapes()
        parameters = CheckpointParameters(checkpoint, sources, shapes_of, torch.float32)
        found = parameters.get("token_types")
    assert (0 if found is None else len(found)) == num_types


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bert.attention.causal": True}, "bert.attention.causal = True, but it must be false"),
        ({"bert.attention.causal": None}, "lacks the key bert.attention.causal: false"),
        ({"bert.attention.head_count_kv": 1}, "bert.attention.head_count_kv = 1, but it must be 2: nothing else"),
        ({"bert.attention.layer_norm_epsilon": None}, "lacks the key bert.attention.layer_norm_epsilon"),
        ({"bert.attention.layer_norm_epsilon": 2.0}, "layer_norm_epsilon = 2.0, but it must be above 0 and below 1"),
        ({"bert.pooling_type": 4}, "bert.pooling_type = 4, but it must be 0 or 1 or 2 or 3: nothing else"),
        ({"bert.context_length": 512}, "bert.context_length = 512, but it must be 16, as position_embd.weight has it"),
        ({"bert.block_count": 10**9}, "bert.block_count = 1000000000, but it must be at most its number of tensors, 21"),
        ({"bert.classifier.output_labels": ["yes"]}, "bert.classifier.output_labels = an array of 1 values, but it must be absent"),
        ({"bert.rope.freq_base": 10000.0}, "bert.rope.freq_base = 10000.0, but it must be absent"),
        ({"tokenizer.ggml.token_type_count": 3}, "tokenizer.ggml.token_type_count = 3, but it must be 2: nothing else"),
    ],
)  # fmt: skip
def test_what_an_encoder_cannot_do_is_refused_by_key_and_value(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write_small_encoder(tmp_path / "model.gguf", **changes)
    with pytest.raises(ConfigError) as caught:
        config(path)
    assert caught.value.message.startswith(str(path))
    assert message in caught.value.message


MODERN: dict[str, Any] = {
    "bert.attention.sliding_window": 128,
    "bert.attention.layer_norm_rms_epsilon": 1e-5,
    "bert.rope.freq_base": 160000.0,
    "bert.rope.freq_base_swa": 20000.0,
    "bert.rope.scaling.type": "none",
    "bert.attention.head_count": 1,
}


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, (None,)),
        ({"bert.attention.sliding_window": None}, (None,)),
        ({"bert.attention.sliding_window_pattern": [True]}, (65,)),
        ({"bert.attention.sliding_window_pattern": [False]}, (None,)),
    ],
)
def test_modern_bert_says_which_layers_have_windows(
    tmp_path: Path, changes: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    path = tmp_path / "model.gguf"
    write_small_encoder(path, architecture="modern-bert", **MODERN | changes)
    settings = ConfigJson.read(path / "config.json")
    architecture = find_architecture(settings)
    assert architecture is not None and architecture.name == "ModernBertModel"
    spec = architecture.make_spec(settings)
    assert tuple(layer.sliding_window for layer in spec.layers) == windows
    bases = {None: 160000.0, 65: 20000.0}
    assert [layer.rope and layer.rope.theta for layer in spec.layers] == [bases[w] for w in windows]


def test_windows_of_other_layers_than_there_are_are_refused(tmp_path: Path) -> None:
    changes = MODERN | {"bert.attention.sliding_window_pattern": [True] * 1000}
    path = write_small_encoder(tmp_path / "model.gguf", architecture="modern-bert", **changes)
    with pytest.raises(ConfigError) as caught:
        config(path)
    assert caught.value.message == (
        f"{path} has modern-bert.attention.sliding_window_pattern = an array of 1000 values, but it must be"
        " one for each layer, 1"
    )


def test_modern_bert_with_another_activation_is_refused(tmp_path: Path) -> None:
    changes = MODERN | {"bert.hidden_activation": "silu"}
    path = write_small_encoder(tmp_path / "model.gguf", architecture="modern-bert", **changes)
    with pytest.raises(
        ConfigError, match=r"modern-bert\.hidden_activation = 'silu', but it must be"
    ):
        config(path)


def test_a_key_that_says_nothing_is_passed_over(tmp_path: Path) -> None:
    write_small(tmp_path / "model.gguf", **{"llama.logit_scale": 0.0, "llama.new.text": ""})
    assert config(tmp_path / "model.gguf")["num_hidden_layers"] == 1


def test_an_architecture_that_is_not_there_is_named(tmp_path: Path) -> None:
    content = write_small(tmp_path / "model.gguf").read_bytes()
    (tmp_path / "model.gguf").write_bytes(content.replace(b"llama", b"mamba"))
    with pytest.raises(ConfigError, match=r"general\.architecture = 'mamba', but pagemesh runs of"):
        config(tmp_path / "model.gguf")


def test_an_architecture_that_is_no_text_is_refused(tmp_path: Path) -> None:
    content = write_small(tmp_path / "model.gguf").read_bytes()
    text = struct.pack("<Q", 5) + b"llama"
    strings = struct.pack("<IIQ", 9, 8, 1) + text
    changed = content.replace(struct.pack("<I", 8) + text, strings, 1)
    # The header has become longer, and so must what lies behind it.
    (tmp_path / "model.gguf").write_bytes(changed + bytes(32))
    with pytest.raises(ConfigError, match=r"general\.architecture = an array of 1 values, but"):
        config(tmp_path / "model.gguf")


def test_a_vocabulary_may_be_shorter_than_a_padded_table(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "llama.vocab_size": 10,
        "tokenizer.ggml.tokens": TOKENS[:10],
        "tokenizer.ggml.token_type": TYPES[:10],
    }
    path = write_small(tmp_path / "model.gguf", **changes)
    assert config(path)["vocab_size"] == 12
    assert Tokenizer(path).encode_batch(["ab"], add_special_tokens=False) == [[6]]


def test_a_tensor_of_another_shape_than_the_metadata_asks_for_is_named(tmp_path: Path) -> None:
    path = write_small(tmp_path / "model.gguf", **{"llama.feed_forward_length": 64})
    settings = ConfigJson.read(path / "config.json")
    with Checkpoint.open(path) as checkpoint, pytest.raises(ConfigError) as caught:
        check(checkpoint, LLAMA.make_spec(settings))
    assert caught.value.message == (
        f"{path} has the tensor blk.0.ffn_gate.weight with shape [32, 32], but its metadata asks for [64, 32]"
    )


def test_a_type_that_is_not_unpacked_is_named(tmp_path: Path) -> None:
    path = write_small(tmp_path / "model.gguf")
    entries, where = read_headers(path)
    entries["blk.0.attn_q.weight"] = entries["blk.0.attn_q.weight"]._replace(dtype="IQ2_XXS")
    reader = GgufReader(open_gguf(path), torch.float32)
    spec = LLAMA.make_spec(ConfigJson.read(path / "config.json"))
    with pytest.raises(ConfigError, match=r"attn_q\.weight of type IQ2_XXS, but only BF16, F16"):
        check(Checkpoint(entries, where, reader), spec)


def test_blocks_are_rounded_once_to_the_type_of_the_model(tmp_path: Path) -> None:
    path = write_small(tmp_path / "model.gguf")
    exact, rounded = (
        Checkpoint.open(path, dtype).read("blk.0.attn_q.weight")
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, exact.bfloat16())
    assert Checkpoint.open(path).read("output_norm.weight").dtype == torch.float32
