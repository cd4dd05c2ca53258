"""Small GGUF files with all that a model has: a tokenizer, a template, tensors of several types."""

from __future__ import annotations

from collections.abc import Mapping
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


def charsmap(units: list[int], texts: bytes = b"text\0") -> bytes:
    """SentencePiece's table of replacements: units of a double array, and texts behind them."""
    table = b"".join(unit.to_bytes(4, "little") for unit in units)
    return len(table).to_bytes(4, "little") + table + texts


# "A" becomes "a": from the first unit to that of the byte, and on to the second, where the text begins at 0.
CHARSMAP = charsmap([0, 1 << 31, *[0] * 63, 64 << 10 | 1 << 8 | 65, *[0] * 190], b"a\0")

PIECES: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": None,
    "tokenizer.ggml.merges": None,
    "tokenizer.ggml.tokens": [*TOKENS[:8], "▁", "▁a", "<0x41>", "<tool>"],
    "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 6, 4],
    "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -5.0, -6.0, -7.0, -1.0, -2.0, -4.0, -3.0, 0.0, 0.0],
    "tokenizer.ggml.unknown_token_id": 0,
}
WORDS: dict[str, Any] = {
    "tokenizer.ggml.model": "bert",
    "tokenizer.ggml.tokens": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁a", "b", "▁abc", "c"],
    "tokenizer.ggml.token_type": [3, 3, 3, 3, 1, 1, 1, 1],
    "tokenizer.ggml.token_type_count": 2,
    "tokenizer.ggml.unknown_token_id": 1,
    "tokenizer.ggml.cls_token_id": 2,
    "tokenizer.ggml.seperator_token_id": 3,
    "tokenizer.ggml.normalizer.lowercase": True,
}
UNIGRAMS: dict[str, Any] = {
    "tokenizer.ggml.model": "t5",
    "tokenizer.ggml.tokens": ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁a", "b", "c"],
    "tokenizer.ggml.scores": [0.0, 0.0, 0.0, 0.0, -3.0, -1.0, -2.0, -2.5],
    "tokenizer.ggml.token_type": [3, 3, 3, 2, 1, 1, 1, 1],
    "tokenizer.ggml.token_type_count": 2,
    "tokenizer.ggml.add_space_prefix": True,
    "tokenizer.ggml.remove_extra_whitespaces": True,
    "tokenizer.ggml.precompiled_charsmap": CHARSMAP,
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 3,
    "tokenizer.ggml.add_bos_token": True,
}
ENCODER: dict[str, Any] = {
    "bert.block_count": 1,
    "bert.context_length": 16,
    "bert.embedding_length": 32,
    "bert.feed_forward_length": 64,
    "bert.attention.head_count": 2,
    "bert.attention.layer_norm_epsilon": 1e-12,
    "bert.attention.causal": False,
    "bert.pooling_type": 1,
}
ENCODER_SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd": (8, 32),
    "position_embd": (16, 32),
    "token_types": (2, 32),
    "token_embd_norm": (32,),
    "blk.0.attn_q": (32, 32),
    "blk.0.attn_k": (32, 32),
    "blk.0.attn_v": (32, 32),
    "blk.0.attn_output": (32, 32),
    "blk.0.attn_output_norm": (32,),
    "blk.0.ffn_up": (64, 32),
    "blk.0.ffn_down": (32, 64),
    "blk.0.layer_output_norm": (32,),
}


def write_small(path: Path, **changes: Any) -> Path:
    """A change to None takes the key away; matrices are of Q8_0, norms of F32."""
    return write_small_decoder(path, METADATA | changes)


def write_small_decoder(
    path: Path,
    metadata: Mapping[str, Any],
    architecture: str = "llama",
    num_rows: int = len(TOKENS),
) -> Path:
    """The same with other keys altogether, and a table of so many rows."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        add(writer, key.replace("llama.", f"{architecture}.", 1), value)
    shapes = SHAPES | {"token_embd": (num_rows, 32)}
    add_tensors(writer, {f"{name}.weight": shape for name, shape in shapes.items()})
    finish(writer)
    return path


def write_small_parts(first: Path) -> Path:
    """The same in two files: the first is called NAME-00001-of-00002.gguf, and the other one lies beside it."""
    names = list(SHAPES)
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    for number, half in enumerate(halves):
        path = first.with_name(first.name.replace("00001", f"0000{number + 1}"))
        writer = gguf.GGUFWriter(path, "llama")
        for key, value in METADATA.items() if number == 0 else ():
            add(writer, key, value)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(names))
        add_tensors(writer, {f"{name}.weight": SHAPES[name] for name in half})
        finish(writer)
    return first


def write_small_encoder(
    path: Path,
    tokenizer: Mapping[str, Any] = WORDS,
    shapes: Mapping[str, tuple[int, ...]] = ENCODER_SHAPES,
    architecture: str = "bert",
    **changes: Any,
) -> Path:
    """The same of an encoder, whose projections and norms have biases."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (ENCODER | dict(tokenizer) | changes).items():
        add(writer, key.replace("bert.", f"{architecture}.", 1), value)
    biases = {f"{n}.bias": s[:1] for n, s in shapes.items() if n[:3] == "blk" or n[-4:] == "norm"}
    add_tensors(writer, {f"{name}.weight": shape for name, shape in shapes.items()} | biases)
    finish(writer)
    return path


def add_tensors(writer: gguf.GGUFWriter, shapes: Mapping[str, tuple[int, ...]]) -> None:
    generator = np.random.default_rng(3)
    for name, shape in shapes.items():
        tensor = generator.normal(size=shape).astype(np.float32)
        kind = None if len(shape) == 1 else gguf.GGMLQuantizationType.Q8_0
        packed = tensor if kind is None else gguf.quantize(tensor, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
