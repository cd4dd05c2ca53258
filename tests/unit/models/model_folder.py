"""The smallest Llama folder: one layer, written out by hand so that a test can break any part of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from pagemesh.models.loader import LoadedModel

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 11,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 6,
    "max_position_embeddings": 32,
    "eos_token_id": 3,
}
SHAPES = {
    "model.embed_tokens.weight": (11, 8),
    "model.layers.0.input_layernorm.weight": (8,),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.self_attn.k_proj.weight": (4, 8),
    "model.layers.0.self_attn.v_proj.weight": (4, 8),
    "model.layers.0.self_attn.o_proj.weight": (8, 8),
    "model.layers.0.post_attention_layernorm.weight": (8,),
    "model.layers.0.mlp.gate_proj.weight": (6, 8),
    "model.layers.0.mlp.up_proj.weight": (6, 8),
    "model.layers.0.mlp.down_proj.weight": (8, 6),
    "model.norm.weight": (8,),
    "lm_head.weight": (11, 8),
}


def make_tensors(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    return tensors | changes


def write_config(folder: Path, **changes: Any) -> None:
    """A change to None takes the key away."""
    config = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))


def write_model(
    folder: Path, tensors: dict[str, torch.Tensor] | None = None, **config_changes: Any
) -> Path:
    write_config(folder, **config_changes)
    save_file(make_tensors() if tensors is None else tensors, folder / "model.safetensors")
    return folder


def write_model_of(folder: Path, **sizes: Any) -> Path:
    """A model of other sizes."""
    config = CONFIG | sizes
    hidden, inner, vocab = (
        config[key] for key in ("hidden_size", "intermediate_size", "vocab_size")
    )
    head = hidden // config["num_attention_heads"]
    shapes = {
        "embed_tokens": (vocab, hidden),
        "lm_head": (vocab, hidden),
        "k_proj": (config["num_key_value_heads"] * head, hidden),
        "gate_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }
    shapes |= {"v_proj": shapes["k_proj"], "up_proj": shapes["gate_proj"]}
    shapes |= {"q_proj": (hidden, hidden), "o_proj": (hidden, hidden)}
    generator = torch.Generator().manual_seed(7)
    tensors = {
        name: torch.randn(shapes.get(name.split(".")[-2], (hidden,)), generator=generator)
        for name in SHAPES
    }
    return write_model(folder, tensors, **sizes)


def write_sharded_model(folder: Path) -> Path:
    """The same model in two files and an index."""
    write_config(folder)
    names = list(SHAPES)
    shards = {
        "model-00001-of-00002.safetensors": names[:5],
        "model-00002-of-00002.safetensors": names[5:],
    }
    tensors = make_tensors()
    for file, members in shards.items():
        save_file({name: tensors[name] for name in members}, folder / file)
    weight_map = {name: file for file, members in shards.items() for name in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def break_token(model: LoadedModel, token_id: int) -> None:
    """Turn a token's embedding into NaN in memory; a checkpoint with NaN would be refused."""
    decoder: Any = model.decoder
    look_up = decoder._embedding._rows
    # A kernel's on a CPU; elsewhere the weight's own.
    (table,) = getattr(look_up, "kept", None) or [look_up.__self__.tensor]
    table[token_id] = torch.nan
