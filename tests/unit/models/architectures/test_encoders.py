"""Encoders: what config.json and the files beside it say, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagemesh.config import ModelConfig
from pagemesh.core.engine import Pooling
from pagemesh.errors import ConfigError
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.models.registry import find_architecture
from pagemesh.models.spec import (
    AttentionSpec,
    DecoderSpec,
    InputSpec,
    LayerSpec,
    MlpSpec,
    NormSpec,
    RopeSpec,
)
from tests.identity.encoder_checkpoints import RECIPES, EncoderRecipe, make_encoder

BERT = RECIPES["BERT"]


def make_spec(name: str, **values: Any) -> DecoderSpec:
    config = ConfigJson({"architectures": [name], "vocab_size": 11} | values, "config.json")
    architecture = find_architecture(config)
    assert architecture is not None
    return architecture.make_spec(config)


def load(folder: Path, **settings: Any) -> LoadedModel:
    return load_model(ModelConfig(str(folder), **settings))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        del tensors[name]
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")


def test_a_bert_is_layers_whose_sums_are_normed() -> None:
    assert make_spec(
        "BertModel",
        hidden_size=8,
        intermediate_size=6,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        type_vocab_size=3,
        layer_norm_eps=1e-5,
    ) == DecoderSpec(
        architecture="BertModel",
        vocab_size=11,
        hidden_size=8,
        norm=NormSpec("layer", 1e-5),
        attention=AttentionSpec(2, 2, 4, scale=0.5, qkv_bias=True, o_bias=True),
        layers=(LayerSpec(MlpSpec(6, "gelu", bias=True), None),) * 2,
        tie_word_embeddings=True,
        max_position=32,
        longest_position=32,
        residual="normed_sums",
        has_head=False,
        causal=False,
        input=InputSpec(num_positions=32, first_position=0, num_token_types=3),
    )


def test_a_modernbert_has_windows_in_most_layers_and_a_rope_for_each_kind() -> None:
    spec = make_spec(
        "ModernBertModel",
        hidden_size=16,
        num_attention_heads=2,
        num_hidden_layers=5,
        local_attention=20,
        local_rope_theta=77.0,
        intermediate_size=6,
    )
    far, near = RopeSpec(160_000.0, 8), RopeSpec(77.0, 8)
    mlp = MlpSpec(6, "geglu")
    assert spec.layers == (
        LayerSpec(mlp, far, None, norms_input=False),
        LayerSpec(mlp, near, 11),
        LayerSpec(mlp, near, 11),
        LayerSpec(mlp, far, None),
        LayerSpec(mlp, near, 11),
    )
    assert spec.norm == NormSpec("layer", 1e-5, bias=False)
    assert (spec.residual, spec.causal, spec.input) == ("sequential", False, InputSpec())
    assert "layers.0.attention_norm.weight" not in spec.parameter_shapes()
    assert "layers.1.attention_norm.bias" not in spec.parameter_shapes()


@pytest.mark.parametrize(
    ("name", "values", "places", "max_position"),
    [
        ("BertModel", {"pad_token_id": 3}, InputSpec(512, 0, 2), 512),
        ("RobertaModel", {"max_position_embeddings": 514}, InputSpec(514, 2, 2), 512),
        ("XLMRobertaModel", {"pad_token_id": 4, "type_vocab_size": 1}, InputSpec(512, 5, 1), 507),
        ("RobertaModel", {"pad_token_id": 0}, InputSpec(512, 1, 2), 511),
        ("DistilBertModel", {"pad_token_id": 3}, InputSpec(512, 0, 0), 512),
    ],
)
def test_positions_begin_behind_the_padding_tokens_where_the_model_was_trained_so(
    name: str, values: dict[str, Any], places: InputSpec, max_position: int
) -> None:
    spec = make_spec(name, **values)
    assert spec.input == places
    assert (spec.max_position, spec.longest_position) == (max_position, max_position)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("BertModel", {"position_embedding_type": "relative_key"}, "'relative_key', but it must"),
        ("BertModel", {"hidden_act": "relu"}, "hidden_act = 'relu', but it must be \"gelu\""),
        ("BertModel", {"is_decoder": True}, "is_decoder = True, but it must be false"),
        ("RobertaModel", {"add_cross_attention": True}, "add_cross_attention = True, but"),
        ("BertModel", {"num_attention_heads": 7}, "hidden_size = None, but it must be a multiple"),
        ("DistilBertModel", {"activation": "relu"}, "activation = 'relu', but"),
        ("ModernBertModel", {"hidden_activation": "silu"}, "hidden_activation = 'silu', but"),
        ("ModernBertModel", {"rope_scaling": {"factor": 2}}, "rope_scaling = {'factor': 2}, but"),
        ("ModernBertModel", {"num_attention_heads": 7}, "it must be a multiple of 2 · num_"),
        (
            "RobertaModel",
            {"pad_token_id": 9, "max_position_embeddings": 10},
            "max_position_embeddings = 10, but it must be more than 10",
        ),
    ],
)
def test_what_the_layers_cannot_express_is_refused(
    name: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_spec(name, **values)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("files", "asked", "expected"),
    [
        ({}, None, 100),
        ({"sentence_bert_config.json": {"max_seq_length": 40}}, None, 40),
        ({"sentence_bert_config.json": {"max_seq_length": 400}}, None, 100),
        ({"sentence_roberta_config.json": {"max_seq_length": 40}}, None, 40),
        ({"sentence_bert_config.json": {"max_seq_length": None}}, None, 100),
        ({"tokenizer_config.json": {"model_max_length": 30}}, None, 30),
        ({"tokenizer_config.json": {"model_max_length": 1e30}}, None, 100),
        (
            {
                "sentence_bert_config.json": {"max_seq_length": 40},
                "tokenizer_config.json": {"model_max_length": 30},
            },
            None,
            40,
        ),
        ({"sentence_bert_config.json": {"max_seq_length": 40}}, 80, 80),
    ],
)
def test_texts_are_as_long_as_the_model_was_made_for_unless_more_is_asked_for(
    tmp_path: Path, files: dict[str, dict[str, Any]], asked: int | None, expected: int
) -> None:
    make_encoder(tmp_path, BERT)
    for name, values in files.items():
        (tmp_path / name).write_text(json.dumps(values))
    assert load(tmp_path, max_model_len=asked).max_model_len == expected


def test_more_than_there_are_positions_for_is_refused(tmp_path: Path) -> None:
    make_encoder(tmp_path, EncoderRecipe("RobertaConfig"))
    with pytest.raises(
        ConfigError, match="--max-model-len is 99, but the model's own context is 98"
    ):
        load(tmp_path, max_model_len=99)


def test_texts_that_were_to_be_changed_before_the_tokenizer_are_refused(tmp_path: Path) -> None:
    make_encoder(tmp_path, BERT)
    (tmp_path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    with pytest.raises(ConfigError, match="do_lower_case = True, but it must be false"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (BERT, Pooling("cls", normalize=True)),
        (EncoderRecipe("RobertaConfig", "mean"), Pooling("mean", normalize=True)),
        (EncoderRecipe("BertConfig", "lasttoken", normalize=False), Pooling("last", False)),
    ],
    ids=["no files", "mean", "last token"],
)
def test_pooling_is_that_of_the_folder_or_the_first_token(
    tmp_path: Path, recipe: EncoderRecipe, expected: Pooling
) -> None:
    make_encoder(tmp_path, recipe)
    model = load(tmp_path)
    assert model.pooling == expected
    assert not model.generates
    assert not model.shape.causal


def test_blocks_of_an_encoder_hold_one_layer(tmp_path: Path) -> None:
    make_encoder(tmp_path, BERT)
    layout = load(tmp_path).block_layout(16)
    assert layout.group == (1, 6, 12)


@pytest.mark.parametrize(
    ("tensor", "change", "message"),
    [
        ("embeddings.position_embeddings.weight", None, "lacks the tensor embeddings.position_emb"),
        ("encoder.layer.2.attention.self.key.bias", None, "lacks the tensor encoder.layer.2."),
        (
            "encoder.layer.0.intermediate.dense.weight",
            torch.ones(87, 72),
            "with shape [87, 72], but config.json asks for [88, 72]",
        ),
        (
            "embeddings.token_type_embeddings.weight",
            torch.full((2, 72), torch.nan),
            "embeddings.token_type_embeddings.weight with values that are NaN",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    tmp_path: Path, tensor: str, change: torch.Tensor | None, message: str
) -> None:
    make_encoder(tmp_path, BERT)
    edit_tensors(tmp_path, **{tensor: change})
    with pytest.raises(ConfigError) as caught:
        load(tmp_path)
    assert message in caught.value.message


def test_norms_may_have_the_names_of_early_years(tmp_path: Path) -> None:
    make_encoder(tmp_path, RECIPES["BERT with a head"])
    tensors = load_file(tmp_path / "model.safetensors")
    for new, old in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
        tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    assert "bert.embeddings.LayerNorm.gamma" in tensors
    save_file(tensors, tmp_path / "model.safetensors")
    model: Any = load(tmp_path)
    gamma = tensors["bert.embeddings.LayerNorm.gamma"]
    assert torch.equal(model.decoder._embedding._norm._weight, gamma)


def test_a_tensor_that_the_model_has_no_place_for_is_refused(tmp_path: Path) -> None:
    make_encoder(tmp_path, BERT)
    edit_config(tmp_path, num_hidden_layers=2)
    with pytest.raises(ConfigError, match=r"which config\.json has no place for"):
        load(tmp_path)


def test_an_encoder_whose_weights_are_a_pickle_is_refused(tmp_path: Path) -> None:
    make_encoder(tmp_path, BERT)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin, a pickle, which is never loaded"):
        load(tmp_path)


def test_an_encoder_is_not_run_through_transformers(tmp_path: Path) -> None:
    make_encoder(tmp_path, BERT)
    with pytest.raises(ConfigError, match="BertModel"):
        load(tmp_path, model_impl="transformers")
