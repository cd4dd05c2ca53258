"""Small random encoders, as sentence-transformers would publish them, and what it would make of texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import tokenizers
import torch

from tests.identity.checkpoints import VOCAB_SIZE, Model, spread
from tests.support.late_imports import transformers

SIZES: Final = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 72,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 100,
    "layer_norm_eps": 1e-3,
}
DISTILBERT_SIZES: Final = {
    "vocab_size": VOCAB_SIZE,
    "dim": 72,
    "hidden_dim": 88,
    "n_layers": 3,
    "n_heads": 6,
    "max_position_embeddings": 100,
}
MODERNBERT: Final = {
    "norm_eps": 1e-3,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "cls_token_id": 2,
    "eos_token_id": 3,
    "sep_token_id": 3,
}
SPECIAL_TOKENS: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS: Final = ("the", "capital", "of", "france", "is", "paris", "rome", ".", "a", "##s", "##t")


@dataclass(frozen=True)
class EncoderRecipe:
    """One checkpoint and how its vectors are pooled."""

    config: str
    """Name of the configuration class in transformers."""

    pooling: Literal["cls", "mean", "lasttoken"] | None = None
    """In sentence-transformers' files; None writes none."""

    normalize: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    auto_class: str = "AutoModel"
    """Of the checkpoint: with another one its tensors lie under a prefix, beside a head's."""

    max_seq_length: int | None = None
    """In sentence-transformers' file."""


RECIPES: Final[dict[str, EncoderRecipe]] = {
    "BERT": EncoderRecipe("BertConfig"),
    "BERT mean": EncoderRecipe("BertConfig", "mean", max_seq_length=90),
    "BERT cls, not scaled": EncoderRecipe("BertConfig", "cls", normalize=False),
    "BERT with a head": EncoderRecipe("BertConfig", "lasttoken", auto_class="AutoModelForMaskedLM"),
    "RoBERTa mean": EncoderRecipe("RobertaConfig", "mean", settings={"type_vocab_size": 1}),
    "XLM-RoBERTa": EncoderRecipe(
        "XLMRobertaConfig", "cls", settings={"pad_token_id": 4}, auto_class="AutoModelForMaskedLM"
    ),
    "DistilBERT mean": EncoderRecipe("DistilBertConfig", "mean"),
    "ModernBERT mean": EncoderRecipe(
        "ModernBertConfig",
        "mean",
        settings=MODERNBERT | {"local_attention": 10, "num_hidden_layers": 4},
    ),
    "ModernBERT with biases and a head": EncoderRecipe(
        "ModernBertConfig",
        settings=MODERNBERT
        | {
            "local_attention": 33,
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 300.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            },
        },
        auto_class="AutoModelForMaskedLM",
    ),
}


def make_encoder(folder: Path, recipe: EncoderRecipe) -> Model:
    """A model in float32, also saved to the folder with its tokenizer and sentence-transformers' files."""
    sizes = DISTILBERT_SIZES if recipe.config == "DistilBertConfig" else SIZES
    config = getattr(transformers, recipe.config)(**sizes | recipe.settings)
    torch.manual_seed(5)
    make: Any = getattr(transformers, recipe.auto_class).from_config
    model: Model = make(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread(name.lower(), parameter)
    model.save_pretrained(folder)
    write_sentence_files(folder, recipe)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return model.base_model


def write_sentence_files(folder: Path, recipe: EncoderRecipe) -> None:
    if recipe.pooling is None:
        return
    types = ["Transformer", "Pooling", *["Normalize"] * recipe.normalize]
    modules = [
        {"type": f"x.{name}", "path": f"{i}_{name}" if i else ""} for i, name in enumerate(types)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"embedding_dimension": 72, "pooling_mode": recipe.pooling}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    if recipe.max_seq_length is not None:
        length = {"max_seq_length": recipe.max_seq_length, "do_lower_case": False}
        (folder / "sentence_bert_config.json").write_text(json.dumps(length))


def make_tokenizer() -> tokenizers.Tokenizer:
    """Some words and all letters; texts begin with [CLS] and end with [SEP], whose ids are 2 and 3."""
    letters = "bcdefghijklmnopqrtuvwxyz0123456789"
    pieces = [*SPECIAL_TOKENS, *WORDS, *letters, *(f"##{letter}" for letter in letters)]
    model = tokenizers.models.WordPiece(
        vocab={piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]"
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def reference_vector(model: Model, recipe: EncoderRecipe, token_ids: Sequence[int]) -> torch.Tensor:
    """What transformers' hidden states are pooled to, [hidden]."""
    with torch.inference_mode():
        states = model(torch.tensor([token_ids])).last_hidden_state[0]
    match recipe.pooling:
        case "mean":
            vector = states.mean(0)
        case "lasttoken":
            vector = states[-1]
        case _:
            vector = states[0]
    return torch.nn.functional.normalize(vector, dim=0) if recipe.normalize else vector
