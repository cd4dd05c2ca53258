"""Randomly initialised models of transformers, small, with odd sizes and clear margins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from tests.support.late_imports import transformers

# transformers types its models' own methods only in part.
Model: TypeAlias = Any

VOCAB_SIZE = 131
ONE_FILE = "1GB"
OTHER_DTYPES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Recipe:
    """One checkpoint and how it is compared."""

    config: str
    """Name of the configuration class in transformers."""

    settings: dict[str, Any]

    max_model_len: int | None = None
    """--max-model-len."""

    prompt_lengths: tuple[int, ...] = (1, 2, 15, 16, 17, 40, 77)

    shard_size: str = ONE_FILE
    """Most that one file of the checkpoint holds."""

    model_impl: Literal["auto", "transformers"] = "auto"
    """--model-impl."""

    other_dtypes: tuple[str, ...] = OTHER_DTYPES
    """Types besides float32 that the architecture can be run in."""

    attention: str = "eager"
    """transformers' own implementation; another one would leave soft caps and sinks out."""


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 48,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 2.0}


def longrope(num_frequencies: int) -> dict[str, Any]:
    """Factors of 1 to 2 for short contexts and of 2 to 6 for long ones."""
    return {
        "rope_type": "longrope",
        "rope_theta": 1000.0,
        "short_factor": [1 + i / num_frequencies for i in range(num_frequencies)],
        "long_factor": [2 + 4 * i / num_frequencies for i in range(num_frequencies)],
    }


GQA = {"num_attention_heads": 6, "num_key_value_heads": 2}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 40}

RECIPES: dict[str, Recipe] = {
    "Llama GQA": Recipe("LlamaConfig", GQA | {"head_dim": 24}, shard_size="100KB"),
    "Llama MHA tied": Recipe(
        "LlamaConfig",
        {"num_attention_heads": 3, "num_key_value_heads": 3, "tie_word_embeddings": True},
    ),
    "Llama MQA": Recipe(
        "LlamaConfig",
        {"num_attention_heads": 3, "num_key_value_heads": 1, "rms_norm_eps": 0.02},
    ),
    "Llama llama3 rope": Recipe(
        "LlamaConfig",
        {
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "head_dim": 20,
            "rope_parameters": LLAMA3_ROPE,
        },
    ),
    "Llama linear rope and biases": Recipe(
        "LlamaConfig",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_parameters": LINEAR_ROPE,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "Llama yarn": Recipe("LlamaConfig", GQA | {"rope_parameters": YARN_ROPE}),
    "Llama dynamic": Recipe("LlamaConfig", GQA | {"rope_parameters": DYNAMIC_ROPE}),
    "Mistral": Recipe("MistralConfig", GQA | {"sliding_window": 19}),
    "Qwen 2": Recipe("Qwen2Config", GQA | {"tie_word_embeddings": True}),
    "Qwen 2 with windows": Recipe(
        "Qwen2Config",
        GQA | {"use_sliding_window": True, "sliding_window": 19, "max_window_layers": 1},
    ),
    "Qwen 3": Recipe("Qwen3Config", GQA | {"head_dim": 20}),
    "Gemma 2": Recipe(
        "Gemma2Config",
        GQA
        | {
            "head_dim": 20,
            "sliding_window": 19,
            "query_pre_attn_scalar": 30,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
        },
        other_dtypes=("bfloat16",),
    ),
    "Gemma 3": Recipe(
        "Gemma3TextConfig",
        GQA
        | {
            "head_dim": 20,
            "sliding_window": 19,
            "query_pre_attn_scalar": 30,
            "sliding_window_pattern": 2,
            "rope_parameters": {
                "full_attention": LINEAR_ROPE,
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
        other_dtypes=("bfloat16",),
    ),
    "Gemma 3 with images": Recipe(
        "Gemma3Config",
        {
            "text_config": GQA | {"head_dim": 20, "sliding_window": 19},
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
            "mm_tokens_per_image": 4,
        },
        other_dtypes=("bfloat16",),
    ),
    "Phi-3": Recipe("Phi3Config", GQA | {"sliding_window": 19}),
    "Phi-3 longrope, short": Recipe(
        "Phi3Config",
        GQA
        | {
            "rope_parameters": longrope(6),
            "original_max_position_embeddings": 100,
        },
        max_model_len=100,
    ),
    "Phi-3 longrope, long": Recipe(
        "Phi3Config",
        GQA
        | {
            # Eight of the twelve dimensions of a head turn.
            "rope_parameters": longrope(4) | {"partial_rotary_factor": 0.7},
            "original_max_position_embeddings": 20,
        },
        # transformers takes the short factors up to there.
        prompt_lengths=(21, 22, 31, 32, 40, 77),
    ),
    "Falcon 7B": Recipe("FalconConfig", {"num_attention_heads": 6}),
    "Falcon 40B": Recipe(
        "FalconConfig",
        {
            "num_attention_heads": 6,
            "num_kv_heads": 3,
            "new_decoder_architecture": True,
            "tie_word_embeddings": False,
        },
    ),
    "Falcon 11B": Recipe(
        "FalconConfig",
        {
            "num_attention_heads": 6,
            "num_kv_heads": 2,
            "new_decoder_architecture": True,
            "num_ln_in_parallel_attn": 1,
        },
    ),
    # Slopes are powers of two for eight heads: transformers rounds their products with positions to
    # bfloat16, which is then exact up to position 256.
    "Falcon RW": Recipe(
        "FalconConfig",
        {
            "num_attention_heads": 8,
            "alibi": True,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
            "hidden_size": 64,
        },
        # The plain implementation adds the biases twice.
        attention="sdpa",
    ),
    "Mixtral": Recipe("MixtralConfig", GQA | {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "Qwen 2 MoE": Recipe(
        "Qwen2MoeConfig",
        GQA
        | MOE
        | {
            "num_experts": 5,
            "shared_expert_intermediate_size": 52,
            "decoder_sparse_step": 2,
            "num_hidden_layers": 4,
        },
    ),
    "Qwen 3 MoE": Recipe(
        "Qwen3MoeConfig",
        GQA | MOE | {"num_experts": 7, "norm_topk_prob": True, "mlp_only_layers": [1]},
    ),
    "GPT-OSS": Recipe(
        "GptOssConfig",
        GQA
        | {
            "head_dim": 20,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": 19,
            "swiglu_limit": 1.5,
            "rope_parameters": YARN_ROPE | {"truncate": False},
        },
    ),
}

ONE_OF_EACH = (
    "Llama llama3 rope",
    "Mistral",
    "Qwen 2 with windows",
    "Qwen 3",
    "Gemma 2",
    "Gemma 3",
    "Phi-3",
    "Falcon 40B",
    "Falcon RW",
    "Mixtral",
    "Qwen 2 MoE",
    "Qwen 3 MoE",
    "GPT-OSS",
)
"""Of each architecture the recipe with the most that it has."""


def make_checkpoint(folder: Path, recipe: Recipe) -> Model:
    """A model in float32, also saved to the folder."""
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 72,
        "intermediate_size": 88,
        "num_hidden_layers": 3,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    changes = dict(recipe.settings)
    if "text_config" in changes:
        changes["text_config"] = settings | changes["text_config"]
    else:
        changes = settings | changes
    config = getattr(transformers, recipe.config)(**changes)
    torch.manual_seed(5)
    make: Any = transformers.AutoModelForCausalLM.from_config
    model: Model = make(config, attn_implementation=recipe.attention)
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread(name, parameter)
    model.save_pretrained(folder, max_shard_size=recipe.shard_size)
    is_sharded = (folder / "model.safetensors.index.json").is_file()
    assert is_sharded == (recipe.shard_size != ONE_FILE)
    return model


def spread(name: str, parameter: torch.Tensor) -> None:
    """Much wider than for training: logits then spread by several units, and layers, heads and
    positions all matter."""
    is_norm = "norm" in name or ".ln_" in name
    if is_norm and name.endswith("weight"):
        parameter.uniform_(0.5, 1.5)
    elif "sinks" in name:
        parameter.normal_(1.0, 2.0)
    else:
        parameter.normal_(0.0, 0.1 if "embed" in name else 0.25)


def load_reference(folder: Path) -> Model:
    """A saved model in float32."""
    model: Model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def prompt_logprobs(model: Model, prompt: list[int]) -> list[float]:
    """Of the prompt's tokens behind the first."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt])).logits[0, :-1].float()
    chosen = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(prompt[1:]).unsqueeze(1))
    return list(chosen.flatten().tolist())


class Continuation:
    """What transformers continues a prompt with, and how clear each choice was."""

    def __init__(self, model: Model, prompt: list[int], num_tokens: int) -> None:
        with torch.inference_mode():
            generated = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                do_sample=False,
                max_new_tokens=num_tokens,
                eos_token_id=None,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            )
        self.token_ids: list[int] = generated.sequences[0, len(prompt) :].tolist()
        best = torch.cat(generated.logits).topk(2, dim=-1).values
        self.least_margin = float((best[:, 0] - best[:, 1]).min())
        """Between the logits of the chosen token and of the next best one."""
