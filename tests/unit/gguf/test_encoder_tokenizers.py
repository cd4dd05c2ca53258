"""Tokenizers of encoders out of metadata give the ids of those that the metadata was made of."""

from __future__ import annotations

import importlib
import random
import re
import string
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from pagemesh.errors import ConfigError
from pagemesh.tokenizer import Tokenizer
from tests.support.late_imports import transformers
from tests.unit.gguf.small_file import UNIGRAMS, WORDS, charsmap, write_small_encoder
from tests.unit.gguf.test_tokenizers import lines, samples, write

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
"""XLM-RoBERTa's first, in the place of SentencePiece's first three."""

BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def texts() -> list[str]:
    """Of all kinds: accents, scripts, forms that are replaced, control characters, long words, blanks, nothing."""
    draw = random.Random(5)
    ranges = ((0x20, 0x250), (0x300, 0x370), (0x370, 0x530), (0x2000, 0x2100), (0x3040, 0x3100),
              (0x4E00, 0x4F00), (0xAC00, 0xAD00), (0xFB00, 0xFB50), (0xFF00, 0xFFF0), (0x1F300, 0x1F600))  # fmt: skip
    alphabet = [chr(code) for begin, end in ranges for code in range(begin, end)]
    mixed = ["".join(draw.choices([*alphabet, *" " * 300], k=50)) for _ in range(300)]
    return [
        *(text.replace("▁", "_") for text in [*samples(), *mixed]),
        *("", " ", "\n", "  leading", "trailing  ", "a  b   c\t\td\r\ne", "ＦＵＬＬ ｗｉｄｔｈ ①②③ ﬁ ﬂ"),
        *("Crème brûlée, naïve façade; ÀÉÎÕÜ", "e\u0301e\u0301 n\u0303", "日本語とEnglish混在。", "مرحبا بالعالم"),
        *("👩‍👩‍👧‍👦 family 🏳️‍🌈", "\x00null\x07bell\u200bzero\ufeffbom\u00adsoft\x85nel\u2028ls", "a" * 99, "b" * 101),
        *("aaaa" * 40, "supercalifragilistic" * 12, "<s>", "a <mask> b</s>c<unk>", "[CLS] a [MASK]b[SEP]", "[unused1]"),
    ]  # fmt: skip


def pieces(folder: Path, **settings: Any) -> Any:
    """A small model of SentencePiece's unigrams."""
    sentencepiece: Any = importlib.import_module("sentencepiece")
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join([*lines(), "日本語 混在", "naïve façade", "aaaa aaa"]))
    defaults = {"normalization_rule_name": "nmt_nfkc", "vocab_size": 1500}
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "pieces"),
        model_type="unigram",
        minloglevel=2,
        **defaults | settings,
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "pieces.model"))


def normalizer_of(folder: Path) -> Any:
    protos: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    model = protos.ModelProto()
    model.ParseFromString((folder / "pieces.model").read_bytes())
    return model.normalizer_spec


def unigram_metadata(vocabulary: list[tuple[str, float]], normalizer: Any) -> dict[str, Any]:
    """As the converter writes it for XLM-RoBERTa, with ids at the end that no token has."""
    num_unused = 3
    return {
        "ggml.model": "t5",
        "ggml.pre": "default",
        "ggml.tokens": [*(text for text, _ in vocabulary), *(f"[PAD{i}]" for i in range(num_unused))],
        "ggml.scores": [*(score for _, score in vocabulary), *[-10000.0] * num_unused],
        "ggml.token_type": [3, 3, 3, 2, *[1] * (len(vocabulary) - 5), 3, *[5] * num_unused],
        "ggml.add_space_prefix": normalizer.add_dummy_prefix,
        "ggml.remove_extra_whitespaces": normalizer.remove_extra_whitespaces,
        "ggml.precompiled_charsmap": normalizer.precompiled_charsmap,
        "ggml.token_type_count": 1,
        "ggml.bos_token_id": 0,
        "ggml.eos_token_id": 2,
        "ggml.unknown_token_id": 3,
        "ggml.seperator_token_id": 2,
        "ggml.padding_token_id": 1,
        "ggml.cls_token_id": 0,
        "ggml.mask_token_id": len(vocabulary) - 1,
        "ggml.add_bos_token": True,
        "ggml.add_eos_token": True,
    }  # fmt: skip


def as_xlm_roberta(model: Any) -> list[tuple[str, float]]:
    """Its pieces behind XLM-RoBERTa's special tokens."""
    ids = range(3, model.vocab_size())
    own = [(model.id_to_piece(id_), model.get_score(id_)) for id_ in ids]
    return [*((text, 0.0) for text in SPECIAL), *own, ("<mask>", 0.0)]


def test_unigrams_are_those_of_transformers_xlm_roberta(tmp_path: Path) -> None:
    vocabulary = as_xlm_roberta(pieces(tmp_path))
    normalizer = normalizer_of(tmp_path)
    read = Tokenizer(write(tmp_path / "model.gguf", unigram_metadata(vocabulary, normalizer)))
    original = transformers.XLMRobertaTokenizer(
        vocab=vocabulary,
        _spm_precompiled_charsmap=normalizer.precompiled_charsmap,
    )
    found = read.encode_batch(texts(), add_special_tokens=True)
    assert found == original(texts()).input_ids
    assert found[texts().index("")] == [0, 2]
    assert [read.decode(ids) for ids in found] == original.batch_decode(
        found, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    assert read.special_token_ids == {0, 1, 2, 3, len(vocabulary) - 1}
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
    assert read.template_variables.items() >= names.items()


@pytest.mark.parametrize("tidies", [True, False])
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc_cf", "identity"])
def test_unigrams_are_those_of_sentencepiece(
    tmp_path: Path, rule: str, prefix: bool, tidies: bool
) -> None:
    model = pieces(
        tmp_path,
        normalization_rule_name=rule,
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=tidies,
        allow_whitespace_only_pieces=not tidies,
        # What a text cannot be cut into is told apart from what it is cut into otherwise.
        byte_fallback=True,
    )
    ids = range(model.vocab_size())
    kinds = {3: model.is_control, 2: model.is_unknown, 6: model.is_byte}
    types = [next((kind for kind, holds in kinds.items() if holds(id_)), 1) for id_ in ids]
    normalizer = normalizer_of(tmp_path)
    metadata = {
        "ggml.model": "t5",
        "ggml.tokens": [model.id_to_piece(id_) for id_ in ids],
        "ggml.scores": [model.get_score(id_) for id_ in ids],
        "ggml.token_type": types,
        "ggml.add_space_prefix": prefix,
        "ggml.remove_extra_whitespaces": tidies,
        "ggml.precompiled_charsmap": normalizer.precompiled_charsmap or None,
        "ggml.unknown_token_id": 0,
        "ggml.eos_token_id": 2,
    }
    read = Tokenizer(write(tmp_path / "model.gguf", metadata))
    # XLM-RoBERTa's words end at all kinds of blanks, which its normalizer makes one.
    plain = [re.sub(r"[\t\r\n]", " ", text) for text in samples() if "▁" not in text]
    found = read.encode_batch(plain, add_special_tokens=True)
    expected = [[*model.encode(text), 2] for text in plain]
    others = [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]]
    # "a" and "aa" are as likely as "aa" and "a": which comes first is for rounding to say, and each library rounds its own.
    assert all(sorted(ours) == sorted(theirs) for ours, theirs in others)
    assert [read.decode(ours) for ours, _ in others] == [read.decode(own) for _, own in others]
    assert len(others) <= 2


def word_pieces(*, lowers: bool) -> tokenizers.Tokenizer:
    """With letters in both cases where case is kept, and some words."""
    library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=lowers)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=1000,
        special_tokens=[*BERT_SPECIAL, "[unused1]"],
        initial_alphabet=[
            *(string.digits if lowers else string.ascii_letters),
            "é",
            "日",
            "本",
            "語",
            "🙂",
        ],
        show_progress=False,
    )
    library.train_from_iterator(lines(), trainer)
    return library


def marked(token: str) -> str:
    return token[2:] if token.startswith("##") else f"▁{token}"


def word_metadata(library: tokenizers.Tokenizer, *, older: bool) -> dict[str, Any]:
    """As the converter writes it, or wrote it in 2024: all in brackets without a mark, and no token of the beginning."""
    vocabulary = library.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    types = [3 if token in BERT_SPECIAL else 1 for token in tokens]
    bare = [
        type_ == 3 or (older and token[0] == "[" and token[-1] == "]")
        for token, type_ in zip(tokens, types, strict=True)
    ]
    metadata = {
        "ggml.model": "bert",
        "ggml.pre": "jina-v2-en",
        "ggml.tokens": [t if is_bare else marked(t) for t, is_bare in zip(tokens, bare, strict=True)],
        "ggml.token_type": types,
        "ggml.token_type_count": 2,
        "ggml.unknown_token_id": 1,
        "ggml.seperator_token_id": 3,
        "ggml.padding_token_id": 0,
        "ggml.cls_token_id": 2,
        "ggml.mask_token_id": 4,
    }  # fmt: skip
    newer = {
        "ggml.bos_token_id": 2,
        "ggml.eos_token_id": 3,
        "ggml.add_bos_token": True,
        "ggml.add_eos_token": True,
    }
    return metadata if older else metadata | newer


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize("lowers", [True, False])
def test_word_pieces_are_those_of_transformers_bert(
    tmp_path: Path, lowers: bool, older: bool
) -> None:
    library = word_pieces(lowers=lowers)
    read = Tokenizer(write(tmp_path / "model.gguf", word_metadata(library, older=older)))
    original = transformers.BertTokenizer(vocab=library.get_vocab(), do_lower_case=lowers)
    found = read.encode_batch(texts(), add_special_tokens=True)
    assert found == original(texts()).input_ids
    assert found[texts().index("")] == [2, 3]
    assert read.special_token_ids == {0, 1, 2, 3, 4}
    strings = original.convert_ids_to_tokens([*range(1000)])
    assert read.token_strings(range(1000)) == strings
    assert read.template_variables.items() >= {"cls_token": "[CLS]", "sep_token": "[SEP]"}.items()


def test_the_file_says_whether_case_and_accents_are_kept(tmp_path: Path) -> None:
    metadata = word_metadata(word_pieces(lowers=False), older=False)
    path = tmp_path / "model.gguf"
    lower = Tokenizer(write(path, metadata | {"ggml.normalizer.lowercase": True}))
    accents = {"ggml.normalizer.lowercase": True, "ggml.normalizer.strip_accents": False}
    kept = Tokenizer(write(path, metadata | accents))
    for read, same in ((lower, ["É", "e"]), (kept, ["É", "é"])):
        upper_ids, lower_ids = read.encode_batch(same, add_special_tokens=False)
        assert upper_ids == lower_ids
    assert lower.encode_batch(["é"], add_special_tokens=False) != kept.encode_batch(
        ["é"], add_special_tokens=False
    )


def test_ids_that_a_file_does_not_say_are_those_of_llama_cpp(tmp_path: Path) -> None:
    tokens = [f"▁w{i}" for i in range(104)]
    tokens[100:103] = ["[UNK]", "[CLS]", "[SEP]"]
    metadata: dict[str, Any] = {"ggml.model": "bert", "ggml.tokens": tokens}
    read = Tokenizer(write(tmp_path / "bert.gguf", metadata))
    assert read.encode_batch(["w3 w103 none"], add_special_tokens=True) == [[101, 3, 103, 100, 102]]
    metadata = {
        "ggml.model": "t5",
        "ggml.tokens": ["<pad>", "</s>", "<unk>", "a", "b"],
        "ggml.scores": [0.0, 0.0, 0.0, -1.0, -2.0],
    }
    read = Tokenizer(write(tmp_path / "t5.gguf", metadata))
    assert read.encode_batch(["abc"], add_special_tokens=True) == [[3, 4, 2, 1]]


def test_unigrams_of_too_many_characters_are_refused(tmp_path: Path) -> None:
    tokens = [f"{number:04}".ljust(4096, "a") for number in range(1025)]
    metadata = {"ggml.model": "t5", "ggml.tokens": tokens, "ggml.scores": [0.0] * 1025}
    with pytest.raises(
        ConfigError, match="an array of 1025 values, but it must be at most 4194304"
    ):
        Tokenizer(write(tmp_path / "model.gguf", metadata))


@pytest.mark.parametrize(
    ("tokenizer", "changes", "message"),
    [
        (UNIGRAMS, {"scores": None}, "lacks the key tokenizer.ggml.scores"),
        (UNIGRAMS, {"scores": [0.0] * 3}, "scores = an array of 3 values, but it must be an array of 8 numbers"),
        (UNIGRAMS, {"scores": [0.0] * 7 + [float("nan")]}, "scores = an array of 8 values, but it must be finite"),
        (UNIGRAMS, {"unknown_token_id": 8}, "unknown_token_id = 8, but it must be an id below 8"),
        (UNIGRAMS, {"bos_token_id": None}, "lacks the key tokenizer.ggml.bos_token_id"),
        (UNIGRAMS, {"remove_extra_whitespaces": 1}, "remove_extra_whitespaces = 1, but it must be true or false"),
        (UNIGRAMS, {"tokens": [*"01234567"[:7], "a" * 2**22]}, "has a token of 4194304 characters"),
        (UNIGRAMS, {"precompiled_charsmap": "x"}, "precompiled_charsmap = 'x', but it must be an array of at most"),
        (UNIGRAMS, {"precompiled_charsmap": b"abc"}, "precompiled_charsmap = an array of 3 values, but it must be a table with"),
        (UNIGRAMS, {"precompiled_charsmap": charsmap([0] * 256, b"")}, "must be a table with its length"),
        (UNIGRAMS, {"precompiled_charsmap": charsmap([0] * 255)}, "must be a table that leads to no place outside"),
        (UNIGRAMS, {"precompiled_charsmap": charsmap([1 << 18] + [0] * 255)}, "leads to no place outside"),
        (UNIGRAMS, {"precompiled_charsmap": charsmap([1 << 8] + [0] * 255, b"\x80\0")}, "leads to no place outside"),
        (UNIGRAMS, {"precompiled_charsmap": charsmap([1 << 8 | 1 << 10, 99] + [0] * 254)}, "leads to no place outside"),
        (WORDS, {"unknown_token_id": None}, "lacks the key tokenizer.ggml.unknown_token_id: there, since words"),
        (WORDS, {"seperator_token_id": None}, "lacks the key tokenizer.ggml.seperator_token_id"),
        (WORDS, {"cls_token_id": 8}, "cls_token_id = 8, but it must be an id below 8"),
        (WORDS, {"normalizer.lowercase": "no"}, "normalizer.lowercase = 'no', but it must be true or false"),
        (WORDS, {"tokens": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁[CLS]", "b", "c", "d"]}, "has the token '[CLS]' twice"),
        (WORDS, {"model": "plamo2"}, "tokenizer.ggml.model = 'plamo2', but it must be gpt2 or llama or t5 or bert"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    tmp_path: Path, tokenizer: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    changed = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    path = write_small_encoder(tmp_path / "model.gguf", tokenizer, **changed)
    with pytest.raises(ConfigError) as caught:
        Tokenizer(path)
    assert message in caught.value.message and str(path) in caught.value.message
