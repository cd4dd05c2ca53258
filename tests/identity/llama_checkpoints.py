"""Randomly initialised Llama models of transformers, small, with odd sizes and clear margins."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import LlamaConfig, LlamaForCausalLM

# transformers types its models' own methods only in part.
Model: TypeAlias = Any

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 48,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}

CONFIGS: dict[str, dict[str, Any]] = {
    "GQA": {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 24},
    "MHA tied": {
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
    "MQA": {"num_attention_heads": 3, "num_key_value_heads": 1, "rms_norm_eps": 0.02},
    "llama3 rope": {
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 20,
        "rope_parameters": LLAMA3_ROPE,
    },
    "linear rope and biases": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": LINEAR_ROPE,
        "attention_bias": True,
        "mlp_bias": True,
    },
}


def make_llama(folder: Path, **changes: Any) -> Model:
    """A model in float32, also saved to the folder."""
    settings: dict[str, Any] = {
        "vocab_size": 131,
        "hidden_size": 72,
        "intermediate_size": 88,
        "num_hidden_layers": 3,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    torch.manual_seed(5)
    model: Model = LlamaForCausalLM(LlamaConfig(**(settings | changes)))
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Norms around 1, all else much wider than for training: logits then spread by several
            # units, and layers, heads and positions all matter.
            wide = 0.1 if "embed" in name else 0.25
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0.0, wide)
    model.save_pretrained(folder)
    return model


def load_llama(folder: Path) -> Model:
    """A saved model in float32."""
    model: Model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


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
