"""Tokenizers out of metadata give the ids of those that the metadata was made of."""

from __future__ import annotations

import importlib
import json
import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from pagemesh.errors import ConfigError
from pagemesh.gguf.documents import read_file
from pagemesh.tokenizer import Tokenizer
from pagemesh.tokenizer.folder import end_token_id
from tests.support.gguf_files import add, finish
from tests.unit.gguf.small_file import METADATA, TOKENS, write_small

ROOT = Path(__file__).resolve().parents[3]

# As they stand in the tokenizer.json of Llama 3, Qwen 2, GPT-4o and Mistral Nemo.
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"

WITHOUT_CUTS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2_CUTS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def cuts(expression: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(expression), "isolated"), WITHOUT_CUTS]
    )


BYTE_LEVEL = {
    "gpt-2": GPT2_CUTS,
    "roberta-bpe": GPT2_CUTS,
    "modern-bert": GPT2_CUTS,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2_CUTS]),
    "llama-bpe": cuts(LLAMA3),
    "qwen2": cuts(QWEN2),
    "gpt-4o": cuts(GPT4O),
    "tekken": cuts(TEKKEN),
}


def lines() -> list[str]:
    text = "\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))[:12])
    return [line for line in text.split("\n") if line.strip()]


def samples() -> list[str]:
    """Texts as people write them, and random characters of such texts and others."""
    draw = random.Random(3)
    found = lines()[:200]
    alphabet = "".join(found) + "äßéñ你好안녕🙂\u0301\t\r\n  '0123456789_ABCdef"
    mixed = ["".join(draw.choices(alphabet, k=60)) for _ in range(200)]
    return [*found, *mixed, " a", "  two  blanks", "HTTPServer's 12345\n\n\t x", "don'T I'LL", ""]


def trained(cut: pre_tokenizers.PreTokenizer) -> tokenizers.Tokenizer:
    """With merges across all cuts, so that where a text is cut shows in its ids."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = WITHOUT_CUTS
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|begin|>", "<|end|>", "<|im_end|>"],
        show_progress=False,
    )
    digits = [f"{number}-{number}" for number in range(0, 10**6, 97)]
    library.train_from_iterator([*lines(), *digits], trainer)
    library.pre_tokenizer = cut
    return library


def write(path: Path, metadata: dict[str, Any]) -> Path:
    """A file with this tokenizer."""
    writer = gguf.GGUFWriter(path, "llama")
    kept = {key: value for key, value in METADATA.items() if not key.startswith("tokenizer")}
    kept["llama.vocab_size"] = len(metadata["ggml.tokens"])
    for key, value in (kept | {f"tokenizer.{k}": v for k, v in metadata.items()}).items():
        add(writer, key, value)
    table = np.zeros((len(metadata["ggml.tokens"]), 32), np.float32)
    writer.add_tensor("token_embd.weight", table)
    finish(writer)
    return path


def byte_level_metadata(library: tokenizers.Tokenizer, pre: str) -> dict[str, Any]:
    model = json.loads(library.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "ggml.model": "gpt2",
        "ggml.pre": pre,
        "ggml.tokens": tokens,
        "ggml.token_type": [3 if token.startswith("<|") else 1 for token in tokens],
        "ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "ggml.bos_token_id": 0,
        "ggml.eos_token_id": 1,
    }


@pytest.mark.parametrize("pre", BYTE_LEVEL)
def test_byte_level_ids_are_those_of_the_tokenizer(tmp_path: Path, pre: str) -> None:
    library = trained(BYTE_LEVEL[pre])
    read = Tokenizer(write(tmp_path / "model.gguf", byte_level_metadata(library, pre)))
    texts = [*samples(), "a<|im_end|>\nb"]
    found = read.encode_batch(texts, add_special_tokens=False)
    assert found == [encoding.ids for encoding in library.encode_batch(texts)]
    assert read.byte_tokens is not None
    assert [read.decode(ids, skip_special_tokens=False) for ids in found] == texts
    begins = pre in ("llama-bpe", "tekken")
    assert read.encode_batch(["b"], add_special_tokens=True)[0][:-1] == [0] * begins


@pytest.mark.parametrize("prefix", [True, False])
def test_ids_of_pieces_are_those_of_sentencepiece(tmp_path: Path, prefix: bool) -> None:
    sentencepiece: Any = importlib.import_module("sentencepiece")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(lines()))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(tmp_path / "pieces"),
        vocab_size=1200,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        add_dummy_prefix=prefix,
        user_defined_symbols=["<|im_end|>"],
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "pieces.model"))
    ids = range(pieces.vocab_size())
    types = [
        2 if pieces.is_unknown(i) else 3 if pieces.is_control(i) else 6 if pieces.is_byte(i) else 1
        for i in ids
    ]
    types[pieces.piece_to_id("<|im_end|>")] = 4
    metadata = {
        "ggml.model": "llama",
        "ggml.tokens": [pieces.id_to_piece(i) for i in ids],
        "ggml.scores": [pieces.get_score(i) for i in ids],
        "ggml.token_type": types,
        "ggml.unknown_token_id": 0,
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
        "ggml.add_space_prefix": prefix,
    }
    read = Tokenizer(write(tmp_path / "model.gguf", metadata))
    texts = [text for text in samples() if "▁" not in text]
    found = read.encode_batch(texts, add_special_tokens=True)
    assert found == [[1, *pieces.encode(text)] for text in texts]
    assert [read.decode(ids) for ids in found] == texts


@pytest.mark.parametrize(
    ("pieces", "most"),
    [
        ([f"{n:02}".ljust(4096, "a") for n in range(17)], "268435456 characters in all ways to cut them in two"),
        (["a" * n for n in range(1, 400)], "16777216 characters in all ways to make them of others"),
    ],
    ids=["cuts", "merges"],
)  # fmt: skip
def test_pieces_that_can_be_cut_in_too_many_ways_are_refused(
    tmp_path: Path, pieces: list[str], most: str
) -> None:
    metadata = {
        "ggml.model": "llama",
        "ggml.tokens": ["<unk>", "<s>", "</s>", *pieces],
        "ggml.scores": [0.0] * (3 + len(pieces)),
        "ggml.token_type": [2, 3, 3] + [1] * len(pieces),
        "ggml.unknown_token_id": 0,
        "ggml.bos_token_id": 1,
    }
    path = write(tmp_path / "model.gguf", metadata)
    with pytest.raises(ConfigError) as caught:
        Tokenizer(path)
    assert caught.value.message == (
        f"{path} has tokenizer.ggml.tokens = an array of {3 + len(pieces)} values, but it must be of at most {most}"
    )


def test_tokens_of_begin_and_end_are_put_around_texts_as_the_file_says(tmp_path: Path) -> None:
    path = write_small(tmp_path / "model.gguf", **{"tokenizer.ggml.add_eos_token": True})
    read = Tokenizer(path)
    assert read.encode_batch(["abc"], add_special_tokens=True) == [[1, 7, 2]]
    assert read.encode_batch(["abc"], add_special_tokens=False) == [[7]]
    path = write_small(tmp_path / "other.gguf", **{"tokenizer.ggml.add_bos_token": False})
    assert Tokenizer(path).encode_batch(["abc"], add_special_tokens=True) == [[7]]


def test_types_of_tokens_say_what_is_special(tmp_path: Path) -> None:
    read = Tokenizer(write_small(tmp_path / "model.gguf"))
    assert read.special_token_ids == {0, 1, 2, 10}
    assert read.encode_batch(["a<tool>b"], add_special_tokens=False) == [[3, 11, 4]]
    assert read.decode([3, 11, 10]) == "a<tool>"
    assert read.template_variables == {"bos_token": "<s>", "eos_token": "</s>"}
    assert end_token_id(tmp_path / "model.gguf") == 2


def test_templates_come_with_their_names(tmp_path: Path) -> None:
    path = write_small(
        tmp_path / "model.gguf",
        **{
            "tokenizer.chat_templates": ["tool_use"],
            "tokenizer.chat_template.tool_use": "with tools",
        },
    )
    templates = Tokenizer(path).chat_templates
    assert templates.choose(has_tools=True).source == "with tools"
    assert templates.choose().render([{"role": "user", "content": "abc"}]) == "abc"


def generation(path: Path) -> Any:
    return json.loads(read_file(path / "generation_config.json"))


def test_all_tokens_that_end_an_answer_are_told(tmp_path: Path) -> None:
    path = write_small(tmp_path / "model.gguf", **{"tokenizer.ggml.eot_token_id": 11})
    # <|im_end|> by its name.
    assert generation(path) == {"eos_token_id": [2, 10, 11]}


def test_a_message_of_harmony_does_not_end_an_answer(tmp_path: Path) -> None:
    tokens = ["a", "<|end|>", "<|return|>", "<|call|>"]
    metadata = {"ggml.tokens": tokens, "ggml.token_type": [1, 3, 3, 3], "ggml.eos_token_id": 2}
    assert generation(write(tmp_path / "model.gguf", metadata)) == {"eos_token_id": [2, 3]}


def test_recommended_sampling_is_the_default(tmp_path: Path) -> None:
    changes = {"general.sampling.temp": 0.5, "general.sampling.top_k": 20}
    found = generation(write_small(tmp_path / "model.gguf", **changes))
    assert found == {"eos_token_id": [2, 10], "temperature": 0.5, "top_k": 20}


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("temp", [1, 2], "an array of 2 values"),
        ("top_p", ["a"], "an array of 1 values"),
        ("min_p", float("nan"), "nan"),
        ("top_k", "x", "'x'"),
        ("penalty_repeat", True, "True"),
    ],
)
def test_recommended_sampling_of_another_type_is_refused(
    tmp_path: Path, key: str, value: Any, shown: str
) -> None:
    path = write_small(tmp_path / "model.gguf", **{f"general.sampling.{key}": value})
    with pytest.raises(ConfigError) as caught:
        generation(path)
    assert caught.value.message == (
        f"{path} has general.sampling.{key} = {shown}, but it must be a number"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "tokenizer.ggml.model = 'rwkv', but it must be gpt2 or"),
        ({"tokenizer.ggml.model": None}, "lacks the key tokenizer.ggml.model"),
        ({"tokenizer.ggml.pre": "kimi-k2"}, "tokenizer.ggml.pre = 'kimi-k2', but it must be one of"),
        ({"tokenizer.ggml.tokens": 3}, "tokenizer.ggml.tokens = 3, but it must be an array of"),
        ({"tokenizer.ggml.tokens": [*TOKENS, "</zz>"]}, "tokenizer.ggml.tokens = an array of 13 values, but it must be at most 12, the rows of token_embd.weight"),
        ({"tokenizer.ggml.tokens": ["x" * 4097, *TOKENS[1:]]}, f"has a token of 4097 characters in tokenizer.ggml.tokens, '{'x' * 99}…, but 4096 are the most"),
        ({"tokenizer.ggml.merges": ["a b"] * 28}, "tokenizer.ggml.merges = an array of 28 values, but it must be at most 27, the ways to cut its tokens in two"),
        ({"tokenizer.chat_template": "x" * (2**17 + 1)}, f"tokenizer.chat_template = '{'x' * 99}…, but it must be a string of at most 131072 characters"),
        ({"tokenizer.chat_templates": ["a"] * 23}, "tokenizer.chat_templates = an array of 23 values, but it must be at most 22, its number of keys"),
        ({"tokenizer.ggml.merges": None}, "lacks the key tokenizer.ggml.merges"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "token_type = an array of 2 values, but it must be an array of 12"),
        ({"tokenizer.ggml.bos_token_id": 12}, "bos_token_id = 12, but it must be an id below 12"),
        ({"tokenizer.ggml.bos_token_id": None}, "lacks the key tokenizer.ggml.bos_token_id"),
        ({"tokenizer.ggml.tokens": ["a"] * 12}, "has the token 'a' twice"),
        ({"tokenizer.ggml.merges": ["x y"]}, "is not a tokenizer"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_tokenizer_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write_small(tmp_path / "model.gguf", **changes)
    with pytest.raises(ConfigError) as caught:
        Tokenizer(path)
    assert message in caught.value.message and str(path) in caught.value.message
