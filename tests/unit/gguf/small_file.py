"""A small GGUF file with all that a model has: a tokenizer, a template, tensors of several types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.support.gguf_files import add, finish

TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "c", "ab", "abc", "Ġ", "Ġa", "<|im_end|>", "<tool>"]
TYPES = [2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 3, 4]

METADATA: dict[str, Any] = {
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 32,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 16,
    "llama.vocab_size": len(TOKENS),
    "general.name": "Small",
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": TYPES,
    "tokenizer.ggml.merges": ["a b", "ab c", "Ġ a"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
}

SHAPES = {
    "token_embd": (len(TOKENS), 32),
    "output_norm": (32,),
    "blk.0.attn_norm": (32,),
    "blk.0.attn_q": (32, 32),
    "blk.0.attn_k": (16, 32),
    "blk.0.attn_v": (16, 32),
    "blk.0.attn_output": (32, 32),
    "blk.0.ffn_norm": (32,),
    "blk.0.ffn_gate": (32, 32),
    "blk.0.ffn_up": (32, 32),
    "blk.0.ffn_down": (32, 32),
}


def write_small(path: Path, **changes: Any) -> Path:
    """A change to None takes the key away; matrices are of Q8_0, norms of F32."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (METADATA | changes).items():
        add(writer, key, value)
    generator = np.random.default_rng(3)
    for name, shape in SHAPES.items():
        tensor = generator.normal(size=shape).astype(np.float32)
        kind = None if len(shape) == 1 else gguf.GGMLQuantizationType.Q8_0
        packed = tensor if kind is None else gguf.quantize(tensor, kind)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)
    finish(writer)
    return path
