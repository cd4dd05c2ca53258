"""Llama checkpoints with random weights, made once on this machine: speed does not depend on the values.

They lie in $XDG_CACHE_HOME/pagemesh/benchmarks, with a tokenizer whose ids all have a text, so that any
engine can load them.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers

_SEED = 20_240_601
_EOS = 0


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama model."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    vocab_size: int
    max_position: int = 4096


SHAPES = {
    "10M": Shape(256, 8, 4, 2, 768, 8_192),
    "160M": Shape(768, 12, 12, 4, 2048, 32_000),
    "1B": Shape(2048, 16, 32, 8, 8192, 32_000),
}
"""By the name that they have here; about as many parameters."""

LONG_SHAPES = {"160M-long": Shape(768, 12, 12, 4, 2048, 32_000, max_position=16_384)}
"""For prompts of thousands of tokens."""

GPU_SHAPES = {"8B": Shape(4096, 32, 32, 8, 14336, 128_256, 8192)}
"""Of models that are measured on GPUs; this one is Llama 3's."""


def make_model(name: str) -> Path:
    """The folder of a model, written when it is not there yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "pagemesh/benchmarks" / f"llama-{name}"
    if not folder.is_dir():
        draft = folder.with_name(f"{folder.name}.{os.getpid()}")
        draft.mkdir(parents=True)
        _write(draft, (SHAPES | LONG_SHAPES | GPU_SHAPES)[name])
        try:
            draft.rename(folder)
        except OSError:  # another run was quicker
            shutil.rmtree(draft)
    return folder


def _write(folder: Path, shape: Shape) -> None:
    _write_json(folder / "config.json", _config(shape))
    _write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _token(_EOS)},
    )
    _tokenizer(shape.vocab_size).save(str(folder / "tokenizer.json"))
    weight_map = {}
    for file, tensors in _files(shape).items():
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, file))
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def _config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "eos_token_id": _EOS,
        "bos_token_id": _EOS,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }


def _files(shape: Shape) -> dict[str, dict[str, torch.Tensor]]:
    """One file per layer and one for the rest, so that no more than the model is in memory."""
    # Billions of numbers take minutes on a CPU.
    large = shape in GPU_SHAPES.values() and torch.cuda.is_available()
    device = "cuda" if large else "cpu"
    generator = torch.Generator(device).manual_seed(_SEED)

    def draw(*size: int) -> torch.Tensor:
        numbers = torch.randn(size, generator=generator, device=device)
        return (numbers * 0.02).to("cpu", torch.bfloat16)

    def ones() -> torch.Tensor:
        return torch.ones(shape.hidden_size, dtype=torch.bfloat16)

    hidden, inner = shape.hidden_size, shape.intermediate_size
    key_value = hidden // shape.num_heads * shape.num_kv_heads
    parts = [
        {
            "model.embed_tokens.weight": draw(shape.vocab_size, hidden),
            "model.norm.weight": ones(),
            "lm_head.weight": draw(shape.vocab_size, hidden),
        }
    ]
    for index in range(shape.num_layers):
        layer = {
            "input_layernorm": ones(),
            "post_attention_layernorm": ones(),
            "self_attn.q_proj": draw(hidden, hidden),
            "self_attn.k_proj": draw(key_value, hidden),
            "self_attn.v_proj": draw(key_value, hidden),
            "self_attn.o_proj": draw(hidden, hidden),
            "mlp.gate_proj": draw(inner, hidden),
            "mlp.up_proj": draw(inner, hidden),
            "mlp.down_proj": draw(hidden, inner),
        }
        parts.append({f"model.layers.{index}.{k}.weight": value for k, value in layer.items()})
    return {
        f"model-{number:05}-of-{len(parts):05}.safetensors": part
        for number, part in enumerate(parts, start=1)
    }


def _tokenizer(vocab_size: int) -> tokenizers.Tokenizer:
    """Bytes, and made-up words that no text contains; the first id is the end of a sequence."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [_token(_EOS), *letters]
    words += [_token(number) for number in range(len(words), vocab_size)]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_token(_EOS)])
    return tokenizer


def _token(number: int) -> str:
    return f"<{number}>"


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def main() -> None:
    """Make a model ahead of what will ask for it."""
    known = SHAPES | LONG_SHAPES | GPU_SHAPES
    names = sys.argv[1:]
    if not names or any(name not in known for name in names):
        sys.exit(f"name models to make, of {', '.join(known)}")
    for name in names:
        print(make_model(name))


if __name__ == "__main__":
    main()
