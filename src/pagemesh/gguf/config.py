"""From a GGUF file's metadata to what config.json would say of the same model.

The architectures' own readers take it from there, so that what they cannot express is refused as for any folder. Keys of
metadata that nobody reads are refused as well, unless they say nothing: a setting that is new must not be passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from pagemesh.errors import ConfigError
from pagemesh.gguf.container import shown_value
from pagemesh.gguf.keys import Keys
from pagemesh.gguf.model import GgufModel
from pagemesh.gguf.rope import rope_settings

Config = dict[str, Any]

PoolingKind = Literal["mean", "cls", "last"]

_POOLINGS: Final[Mapping[int, PoolingKind | None]] = {0: None, 1: "mean", 2: "cls", 3: "last"}
_POOLINGS_OF_DECODERS: Final = (0, 1, 3)
"""A decoder's first token sees nothing but itself."""

_SOFTMAX: Final = 1
_SOFTMAX_OF_CHOSEN: Final = 3
"""Kinds of pooling and of gates, as llama.cpp numbers them."""


class _Family(NamedTuple):
    """How one of llama.cpp's decoders is called here, and what it has beside what all have."""

    name: Callable[[Keys], str]
    """As in config.json's `architectures`."""
    own: Callable[[Keys, Config], Mapping[str, Any]]
    """Its own settings, from the keys and what is known already."""


def config_json(model: GgufModel) -> Config:
    """What config.json would hold; ConfigError by key and value for what pagemesh cannot do."""
    keys = _keys(model)
    architecture = str(model.metadata["general.architecture"])
    if architecture in _ENCODERS:
        config = _ENCODERS[architecture](keys)
    else:
        family = _FAMILIES[architecture]
        config = _decoder(keys)
        config |= {"architectures": [family.name(keys)], **family.own(keys, config)}
        config["rope_parameters"] = rope_settings(keys, config)
    keys.refuse_rest()
    return config


def pooling_kind(model: GgufModel) -> PoolingKind | None:
    """Of which states embeddings are made; None where the file does not say. Errors are those of `config_json`."""
    return _POOLINGS[_keys(model).integer("pooling_type", 0)]


def _keys(model: GgufModel) -> Keys:
    architecture = model.metadata.get("general.architecture")
    if architecture not in (*_FAMILIES, *_ENCODERS):
        raise ConfigError(
            f"{model.path} has general.architecture = {shown_value(architecture)}, but pagemesh runs of GGUF files"
            f" {', '.join([*_FAMILIES, *_ENCODERS])}"
        )
    return Keys(model, str(architecture))


def _common(keys: Keys) -> Config:
    """What decoders and encoders have."""
    tensors = keys.model.tensors
    layers = keys.integer("block_count")
    if layers > len(tensors):
        raise keys.bad("block_count", f"at most its number of tensors, {len(tensors)}")
    num_rows = keys.model.num_rows("token_embd")
    # Fewer tokens than rows are those of a table that was padded.
    if keys.integer("vocab_size", 0) > num_rows:
        raise keys.bad("vocab_size", f"at most {num_rows}, the rows of token_embd.weight")
    # Facts of training and of the file.
    for key in ("tensor_data_layout", "rope.scaling.finetuned"):
        keys.get(key)
    return {
        "vocab_size": num_rows,
        "quantization_config": {"quant_method": "gguf"},
        "num_hidden_layers": layers,
        "max_position_embeddings": keys.integer("context_length"),
        "hidden_size": keys.integer("embedding_length"),
        "intermediate_size": keys.integer("feed_forward_length", 0) or None,
        "num_attention_heads": keys.integer("attention.head_count"),
    }


def _decoder(keys: Keys) -> Config:
    config = _common(keys)
    heads: int = config["num_attention_heads"]
    head_dim = keys.integer("attention.key_length", config["hidden_size"] // max(heads, 1))
    keys.require("attention.value_length", (head_dim,))
    keys.require("attention.causal", (True,))
    keys.require("pooling_type", _POOLINGS_OF_DECODERS)
    return config | {
        # Whatever the blocks are made of, they are computed with in this type unless --dtype says otherwise.
        "dtype": "bfloat16",
        "tie_word_embeddings": "output.weight" not in keys.model.tensors,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
    }


def _encoder(keys: Keys) -> Config:
    config = _common(keys)
    heads: int = config["num_attention_heads"]
    if keys.get("attention.causal") is not False:
        raise keys.bad("attention.causal", "false")
    keys.require("pooling_type", _POOLINGS)
    keys.require("attention.head_count_kv", (heads,))
    head_dim = config["hidden_size"] // max(heads, 1)
    for key in ("attention.key_length", "attention.value_length"):
        keys.require(key, (head_dim,))
    # What encoders are published in, and llama.cpp computes in.
    return config | {"dtype": "float32"}


def _bert(keys: Keys) -> Config:
    """BERT and what differs from it in no more than its tables: RoBERTa, whose converter cuts off the positions of
    padding, and DistilBERT, which has no token types."""
    config = _encoder(keys)
    types = keys.model.tensors.get("token_types.weight")
    num_types = 0
    if types is not None:
        # Of one row, some converters write a vector.
        num_types = keys.model.num_rows("token_types") if len(types.shape) > 1 else 1
        Keys(keys.model, "tokenizer.ggml").require("token_type_count", (num_types,))
    positions = keys.model.num_rows("position_embd")
    if config["max_position_embeddings"] != positions:
        raise keys.bad("context_length", f"{positions}, as position_embd.weight has it")
    return config | {
        "architectures": ["BertModel"],
        "hidden_act": "gelu",
        "type_vocab_size": num_types,
        "layer_norm_eps": keys.epsilon("attention.layer_norm_epsilon"),
    }


def _modern_bert(keys: Keys) -> Config:
    config = _encoder(keys) | {
        "architectures": ["ModernBertModel"],
        "norm_eps": keys.epsilon("attention.layer_norm_epsilon"),
    }
    # Converters read it out of config.json's `norm_eps`, too.
    keys.get("attention.layer_norm_rms_epsilon")
    keys.require("hidden_activation", ("gelu",))
    window = keys.integer("attention.sliding_window", 0)
    if window == 0:
        # Every layer is one without a window.
        config["global_attn_every_n_layers"] = 1
    else:
        config |= {"local_attention": window, **_windows(keys, "global_attn_every_n_layers", 3)}
    sizes = config | {"head_dim": config["hidden_size"] // max(config["num_attention_heads"], 1)}
    return config | {"rope_parameters": rope_settings(keys, sizes)}


def _windows(keys: Keys, period_key: str, period: int) -> Config:
    """Which layers have a window: one by one, or all but every so many."""
    key = "attention.sliding_window_pattern"
    pattern = keys.get(key)
    if isinstance(pattern, memoryview):
        num_layers = keys.integer("block_count")
        if len(pattern) != num_layers:
            raise keys.bad(key, f"one for each layer, {num_layers}")
        types = ("full_attention", "sliding_attention")
        return {"layer_types": [types[bool(slides)] for slides in pattern]}
    return {period_key: keys.integer(key, period)}


def _llama(keys: Keys, config: Config) -> Mapping[str, Any]:
    """Llama, Mistral and Mixtral."""
    has_bias = "blk.0.attn_q.bias" in keys.model.tensors
    own = {"attention_bias": has_bias, "mlp_bias": "blk.0.ffn_gate.bias" in keys.model.tensors}
    return own | (_experts(keys) if keys.integer("expert_count", 0) else {})


def _experts(keys: Keys, gate: int = _SOFTMAX) -> Config:
    """How many there are and are used; the router's tensor says it as well, and counts."""
    count = keys.integer("expert_count")
    router = keys.model.tensors.get("blk.0.ffn_gate_inp.weight")
    if router is not None and router.shape[0] != count:
        raise keys.bad("expert_count", f"{router.shape[0]}, as {router.name} has it")
    if count > len(keys.model.tensors) and router is None:
        raise keys.bad("expert_count", "the number of rows of blk.0.ffn_gate_inp.weight")
    keys.require("expert_gating_func", (gate,))
    keys.require("expert_weights_scale", (0.0, 1.0))
    return {"num_local_experts": count, "num_experts_per_tok": keys.integer("expert_used_count")}


def _rows(keys: Keys, tensor: str, key: str) -> int:
    """Rows of a layer's matrix, as a key says or, without one, the first layer's tensor."""
    found = keys.model.tensors.get(f"blk.0.{tensor}.weight")
    return keys.integer(key, 0) or (0 if found is None else found.shape[-2])


def _qwen_experts(keys: Keys, *, normalizes: bool) -> Config:
    return _experts(keys) | {
        "moe_intermediate_size": _rows(keys, "ffn_gate_exps", "expert_feed_forward_length"),
        # llama.cpp's graph says it, where the key does not.
        "norm_topk_prob": keys.flag("expert_weights_norm", normalizes),
    }


def _qwen2_moe(keys: Keys, config: Config) -> Mapping[str, Any]:
    keys.require("expert_shared_count", (1,))
    shared = _rows(keys, "ffn_gate_shexp", "expert_shared_feed_forward_length")
    moe = _qwen_experts(keys, normalizes=False)
    size = {"intermediate_size": config["intermediate_size"] or moe["moe_intermediate_size"]}
    return moe | size | {"shared_expert_intermediate_size": shared}


def _qwen3_moe(keys: Keys, config: Config) -> Mapping[str, Any]:
    moe = _qwen_experts(keys, normalizes=True)
    return moe | {"intermediate_size": config["intermediate_size"] or moe["moe_intermediate_size"]}


def _phi3(keys: Keys, config: Config) -> Mapping[str, Any]:
    return {"sliding_window": keys.integer("attention.sliding_window", 0) or None}


def _gemma(keys: Keys, config: Config, num_layers_of_27b: int) -> Config:
    """The scale of scores is no key: llama.cpp knows the one model by its layers that has another."""
    size = config["head_dim"]
    if config["num_hidden_layers"] == num_layers_of_27b:
        size = config["hidden_size"] // config["num_attention_heads"]
    return {
        "query_pre_attn_scalar": size,
        "sliding_window": keys.integer("attention.sliding_window", 4096) or None,
        "final_logit_softcapping": keys.number("final_logit_softcapping", 0) or None,
    }


def _gemma2(keys: Keys, config: Config) -> Mapping[str, Any]:
    cap = keys.number("attn_logit_softcapping", 0) or None
    return _gemma(keys, config, 46) | {"attn_logit_softcapping": cap}


def _gemma3(keys: Keys, config: Config) -> Mapping[str, Any]:
    return _gemma(keys, config, 62) | _windows(keys, "sliding_window_pattern", 6)


def _gpt_oss(keys: Keys, config: Config) -> Mapping[str, Any]:
    return _experts(keys, _SOFTMAX_OF_CHOSEN) | {
        "intermediate_size": _rows(keys, "ffn_gate_exps", "expert_feed_forward_length"),
        "sliding_window": keys.integer("attention.sliding_window", 128),
    }


def _nothing(keys: Keys, config: Config) -> Mapping[str, Any]:
    return {}


def _llama_name(keys: Keys) -> str:
    return "MixtralForCausalLM" if keys.integer("expert_count", 0) else "LlamaForCausalLM"


_FAMILIES: Final[Mapping[str, _Family]] = {
    "llama": _Family(_llama_name, _llama),
    "qwen2": _Family(lambda _: "Qwen2ForCausalLM", _nothing),
    "qwen2moe": _Family(lambda _: "Qwen2MoeForCausalLM", _qwen2_moe),
    "qwen3": _Family(lambda _: "Qwen3ForCausalLM", _nothing),
    "qwen3moe": _Family(lambda _: "Qwen3MoeForCausalLM", _qwen3_moe),
    "phi3": _Family(lambda _: "Phi3ForCausalLM", _phi3),
    "gemma2": _Family(lambda _: "Gemma2ForCausalLM", _gemma2),
    "gemma3": _Family(lambda _: "Gemma3ForCausalLM", _gemma3),
    "gpt-oss": _Family(lambda _: "GptOssForCausalLM", _gpt_oss),
}
"""By llama.cpp's names."""

_ENCODERS: Final[Mapping[str, Callable[[Keys], Config]]] = {
    "bert": _bert,
    "modern-bert": _modern_bert,
}
"""What config.json would say of each, by llama.cpp's names."""
