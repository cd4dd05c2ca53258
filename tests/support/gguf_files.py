"""GGUF files of model folders, as llama.cpp's converter makes them: its keys, the `gguf` package's names, its order of rows.

What `convert_hf_to_gguf.py` does to each architecture is written down here once more, beside the product's way back.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

Config: TypeAlias = Mapping[str, Any]
Tensors: TypeAlias = dict[str, torch.Tensor]

ARCHITECTURES: Final = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "phi3": "phi3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "gpt_oss": "gpt-oss",
    "bert": "bert",
    "roberta": "bert",
    "xlm-roberta": "bert",
    "distilbert": "bert",
    "modernbert": "modern-bert",
}
"""llama.cpp's names by transformers'."""

KEYS: Final = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "vocab_size": "vocab_size",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
ENCODER_KEYS: Final = {
    **dict.fromkeys(("num_hidden_layers", "n_layers"), "block_count"),
    **dict.fromkeys(("hidden_size", "dim"), "embedding_length"),
    **dict.fromkeys(("intermediate_size", "hidden_dim"), "feed_forward_length"),
    **dict.fromkeys(("num_attention_heads", "n_heads"), "attention.head_count"),
    "max_position_embeddings": "context_length",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "norm_eps": "attention.layer_norm_epsilon",
}
ENCODERS: Final = ("bert", "modern-bert")
PREFIXES: Final = ("bert.", "roberta.", "distilbert.")
HEADS: Final = ("pooler.", "cls.", "lm_head.", "vocab_")
WITH_WINDOWS: Final = ("phi3", "gemma2", "gemma3", "gpt-oss")

Pack = Callable[[str, np.ndarray], tuple[np.ndarray, gguf.GGMLQuantizationType | None]]
"""What is written for a tensor of float32, and of which type; None for that of the array."""


def as_it_is(name: str, tensor: np.ndarray) -> tuple[np.ndarray, None]:
    return tensor, None


def write_gguf(folder: Path, path: Path, pack: Pack = as_it_is, **changes: Any) -> Path:
    """A file of the model in a folder, without a tokenizer; changes are of keys, and to None take them away."""
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, architecture)
    own = encoder_keys(config) if architecture in ENCODERS else keys_of(config, architecture)
    keys = {f"{architecture}.{key}": value for key, value in own.items()}
    for key, value in (keys | changes).items():
        add(writer, key, value)
    tensors: Tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    if architecture in ENCODERS:
        tensors = cut_encoder(tensors, config)
    for name, tensor in convert(tensors, config, architecture).items():
        packed, kind = pack(name, tensor.float().numpy())
        writer.add_tensor(name, np.ascontiguousarray(packed), raw_dtype=kind)
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """With the type that the converter has for such values."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


def keys_of(config: Config, architecture: str) -> dict[str, Any]:
    """Metadata of an architecture, without its name in front."""
    found = {
        ours: config[theirs] for theirs, ours in KEYS.items() if config.get(theirs) is not None
    }
    if architecture not in WITH_WINDOWS:
        found.pop("attention.sliding_window", None)
    heads = config["num_attention_heads"]
    found["attention.key_length"] = config.get("head_dim") or config["hidden_size"] // heads
    found["attention.value_length"] = found["attention.key_length"]
    if architecture == "gemma3":
        types = config["layer_types"]
        found["attention.sliding_window_pattern"] = [each == "sliding_attention" for each in types]
    return found | rope_keys(config, found["attention.key_length"])


def encoder_keys(config: Config) -> dict[str, Any]:
    """The same of an encoder; pooling is told by another file than config.json."""
    found = {ours: config[theirs] for theirs, ours in ENCODER_KEYS.items() if theirs in config}
    found.setdefault("attention.layer_norm_epsilon", 1e-12)
    found["context_length"] -= num_cut_positions(config)
    if config["model_type"] == "modernbert":
        rope = config["rope_parameters"]
        found |= {
            "attention.sliding_window": config["local_attention"],
            "attention.sliding_window_pattern": config.get("global_attn_every_n_layers", 3),
            "attention.layer_norm_rms_epsilon": config["norm_eps"],
            "rope.freq_base": float(rope["full_attention"]["rope_theta"]),
            "rope.freq_base_swa": float(rope["sliding_attention"]["rope_theta"]),
            "rope.scaling.type": "none",
        }
    return found | {"attention.causal": False}


def num_cut_positions(config: Config) -> int:
    """RoBERTa's first positions are for padding."""
    return config["pad_token_id"] + 1 if "roberta" in config["model_type"] else 0


def cut_encoder(tensors: Tensors, config: Config) -> Tensors:
    """Without a head, the names that stand before a head's, and positions for padding."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
        bare = name.removeprefix(prefix)
        if bare == "embeddings.position_embeddings.weight":
            tensor = tensor[num_cut_positions(config) :]
        if not bare.startswith(HEADS):
            found[bare] = tensor
    return found


def rope_keys(config: Config, head_dim: int) -> dict[str, Any]:
    # transformers before 5 has rope_theta beside the other keys.
    rope = config.get("rope_parameters", config)
    found: dict[str, Any] = {}
    if "sliding_attention" in rope:
        found["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    found["rope.freq_base"] = float(rope["rope_theta"])
    found["rope.dimension_count"] = rotated(rope, head_dim)
    kind = rope.get("rope_type", "default")
    key = "original_max_position_embeddings"
    original: int = rope.get(key) or config.get(key, 0)
    if config["model_type"] == "phi3" or kind == "yarn":
        # Of Phi-3 whether something is stretched or not.
        found["rope.scaling.original_context_length"] = original
    if kind in ("linear", "yarn"):
        found["rope.scaling.type"] = kind
        found["rope.scaling.factor"] = float(rope["factor"])
    if kind == "yarn":
        found["rope.scaling.yarn_beta_fast"] = float(rope["beta_fast"])
        found["rope.scaling.yarn_beta_slow"] = float(rope["beta_slow"])
    if kind == "longrope":
        scale = config["max_position_embeddings"] / original
        found["rope.scaling.attn_factor"] = float(np.sqrt(1 + np.log(scale) / np.log(original)))
    return found


def rotated(rope: Config, head_dim: int) -> int:
    return int(head_dim * rope.get("partial_rotary_factor", 1.0))


def convert(tensors: Tensors, config: Config, architecture: str) -> Tensors:
    """By llama.cpp's names, as it wants them."""
    number = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.get("num_hidden_layers") or config["n_layers"])
    found: Tensors = {}
    for name, tensor in stacked(tensors).items():
        if config.get("tie_word_embeddings") and name == "lm_head.weight":
            continue
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            tensor = tensor.float() + 1
        if architecture == "llama" and re.search(r"\.[qk]_proj\.", name):
            kind = "num_attention_heads" if ".q_proj." in name else "num_key_value_heads"
            tensor = permuted(tensor, config[kind])
        for part, piece in parts(name, tensor).items():
            new = names.get_name(part, try_suffixes=(".weight", ".bias"))
            assert new is not None, part
            found[new if new.endswith((".weight", ".bias")) else f"{new}.weight"] = piece.squeeze()
    return found | ({} if architecture in ENCODERS else rope_factors(config))


def permuted(weights: torch.Tensor, heads: int) -> torch.Tensor:
    shape = (heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return weights.reshape(shape).swapaxes(1, 2).reshape(weights.shape)


def stacked(tensors: Tensors) -> Tensors:
    """With the experts of a layer in one tensor."""
    found: Tensors = {}
    experts: dict[str, dict[int, torch.Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(.+\.experts)\.(\d+)\.(\w+)\.weight", name)
        if match is None:
            found[name] = tensor
        else:
            experts[merged(match[1], match[3])][int(match[2])] = tensor
    for name, matrices in experts.items():
        found[name] = torch.stack([matrices[number] for number in sorted(matrices)])
    return found


def merged(prefix: str, part: str) -> str:
    if part in ("w1", "w2", "w3"):
        prefix = prefix.removeprefix("model.").replace("block_sparse_moe", "feed_forward")
    return f"{prefix}.{part}.weight"


def parts(name: str, tensor: torch.Tensor) -> Tensors:
    """gpt-oss's experts, whose gates and ups alternate and whose matrices are transposed."""
    if "experts.gate_up_proj" in name:
        if not name.endswith("_bias"):
            tensor = tensor.transpose(-1, -2)
        base, ending = name.split("gate_up_proj")
        suffix = ending.replace("_bias", ".bias") or ".weight"
        return {
            f"{base}gate_proj{suffix}": tensor[:, ::2],
            f"{base}up_proj{suffix}": tensor[:, 1::2],
        }
    if name.endswith("experts.down_proj"):
        return {f"{name}.weight": tensor.transpose(-1, -2)}
    return {name.replace("experts.down_proj_bias", "experts.down_proj.bias"): tensor}


def rope_factors(config: Config) -> Tensors:
    rope = config.get("rope_parameters", config)
    if rope.get("rope_type") == "longrope":
        kinds = ("long", "short")
        return {
            f"rope_factors_{kind}.weight": torch.tensor(rope[f"{kind}_factor"]) for kind in kinds
        }
    if rope.get("rope_type") != "llama3":
        return {}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    frequencies = 1.0 / rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    original = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for wave in 2 * np.pi / frequencies:
        smooth = (original / wave - low) / (high - low)
        if wave < original / high:
            factors.append(1.0)
        elif wave > original / low:
            factors.append(rope["factor"])
        else:
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return {"rope_freqs.weight": torch.tensor(factors, dtype=torch.float32)}
