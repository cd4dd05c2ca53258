"""From a GGUF file's metadata to tokenizer.json, tokenizer_config.json and generation_config.json.

Byte-level BPE (`gpt2`), SentencePiece's scores (`llama`), which become BPE with merges in the order of the scores, as
transformers converts them, SentencePiece's unigrams (`t5`) and WordPiece (`bert`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pagemesh.gguf.keys import Keys
from pagemesh.gguf.model import GgufModel
from pagemesh.gguf.pre_tokenizers import BYTE_LEVEL, PRE_TOKENIZERS, read_charsmap
from pagemesh.gguf.vocabulary import BLANK, UNIGRAM, WORD_PIECES, Json, TokenType, Vocabulary

_SPECIAL_TOKENS: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
"""By their names in chat templates, with the keys of their ids; the spelling is the format's."""

_END_KEYS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")

_END_TEXTS: Final = frozenset(
    {
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>", "<|endoftext|>"),
        *("<|end_of_text|>", "<|return|>", "<|call|>", "<|end|>", "<EOT>"),
    }
)
"""Control tokens that end an answer, whatever the ids say: many files name one of several alone."""

_HARMONY: Final = frozenset({"<|return|>", "<|call|>"})
_HARMONY_MESSAGE_END: Final = "<|end|>"
"""In gpt-oss's format an answer goes on behind the end of a message."""

_SAMPLING: Final = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""What the file recommends, by the names of generation_config.json."""


def tokenizer_json(model: GgufModel) -> Json:
    """What tokenizer.json would hold; ConfigError for a kind that is not known here, by its name."""
    vocabulary = Vocabulary(model)
    make = _KINDS.get(vocabulary.kind or "")
    if make is None:
        raise vocabulary.keys.bad("model", " or ".join(_KINDS))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added(),
        **make(vocabulary),
    }


def _byte_level(vocabulary: Vocabulary) -> Json:
    keys = vocabulary.keys
    name = keys.text("pre") or "default"
    kind = PRE_TOKENIZERS.get(name)
    if kind is None:
        raise keys.bad("pre", f"one of {', '.join(PRE_TOKENIZERS)}")
    keys.require("add_space_prefix", (False,))
    # A merge has one blank, and no token of GPT-2's alphabet has any.
    merges = [merge.partition(" ")[::2] for merge in _merge_texts(vocabulary)]
    return {
        "normalizer": {"type": "NFC"} if kind.normalizes else None,
        "pre_tokenizer": kind.settings,
        "post_processor": vocabulary.ends(kind.adds_begin, False, [BYTE_LEVEL]),
        "decoder": BYTE_LEVEL,
        "model": _bpe(vocabulary, merges, ignore_merges=kind.ignores_merges),
    }


def _merge_texts(vocabulary: Vocabulary) -> Sequence[str]:
    """As the file has them, two parts of a token each."""
    texts = vocabulary.keys.texts("merges")
    most = sum(max(0, len(token) - 1) for token in vocabulary.tokens)
    if len(texts) > most:
        raise vocabulary.keys.bad("merges", f"at most {most}, the ways to cut its tokens in two")
    return texts


def _pieces(vocabulary: Vocabulary) -> Json:
    has_prefix = vocabulary.keys.flag("add_space_prefix", True)
    prefix = [_PREFIXED] if has_prefix else []
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, _BLANKS]},
        "pre_tokenizer": None,
        "post_processor": vocabulary.ends(True, False),
        "decoder": _blanks_back(has_prefix),
        "model": _bpe(
            vocabulary,
            list(_merges(vocabulary, vocabulary.scores())),
            unk_token=vocabulary.special("unknown_token_id"),
            fuse_unk=True,
            byte_fallback=any(vocabulary.of_type(TokenType.BYTE)),
        ),
    }


_PREFIXED: Final = {"type": "Prepend", "prepend": BLANK}
_BLANKS: Final = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}


def _blanks_back(has_prefix: bool) -> Json:
    """The decoder of SentencePiece's tokens."""
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else []
    blanks = {"type": "Replace", "pattern": {"String": BLANK}, "content": " "}
    decoders = [blanks, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]
    return {"type": "Sequence", "decoders": decoders}


def _merges(vocabulary: Vocabulary, scores: Sequence[float]) -> Iterator[tuple[str, str]]:
    """All ways to make a piece of two others, the piece of the highest score first."""
    ids, tokens = vocabulary.ids, vocabulary.tokens
    candidates = [
        id_ for id_, text in vocabulary.of_type(TokenType.NORMAL, TokenType.UNUSED) if len(text) > 1
    ]
    if sum(len(tokens[id_]) * (len(tokens[id_]) - 1) for id_ in candidates) > _MOST_CUT_CHARS:
        most = f"of at most {_MOST_CUT_CHARS} characters in all ways to cut them in two"
        raise vocabulary.keys.bad("tokens", most)
    num_chars = 0
    for id_ in sorted(candidates, key=lambda id_: -scores[id_]):
        text = tokens[id_]
        found = [
            (first, second)
            for at in range(1, len(text))
            if (first := ids.get(text[:at])) is not None
            and (second := ids.get(text[at:])) is not None
        ]
        num_chars += len(found) * len(text)
        if num_chars > _MOST_MERGE_CHARS:
            most = f"of at most {_MOST_MERGE_CHARS} characters in all ways to make them of others"
            raise vocabulary.keys.bad("tokens", most)
        # The vocabulary's own strings, of which each stands in many merges.
        yield from ((tokens[first], tokens[second]) for first, second in sorted(found))


_MOST_CUT_CHARS: Final = 2**28
"""What is looked up to find merges, in seconds at most: a token of 16 characters is 240 of them."""

_MOST_MERGE_CHARS: Final = 2**24
"""The library takes some 6 bytes for each; Gemma's 262,144 tokens have half a million merges of a few characters."""


def _bpe(vocabulary: Vocabulary, merges: Sequence[tuple[str, ...]], **settings: Any) -> Json:
    defaults = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {**defaults, **settings, "vocab": vocabulary.ids, "merges": merges}


def _unigram(vocabulary: Vocabulary) -> Json:
    keys = vocabulary.keys
    if sum(map(len, vocabulary.tokens)) > _MOST_UNIGRAM_CHARS:
        raise keys.bad("tokens", f"at most {_MOST_UNIGRAM_CHARS} characters together")
    has_prefix = keys.flag("add_space_prefix", False)
    normalizers, cuts = _blanks_of_unigrams(vocabulary, has_prefix)
    charsmap = read_charsmap(keys)
    if charsmap is not None:
        normalizers.insert(0, {"type": "Precompiled", "precompiled_charsmap": charsmap})
    unknown = vocabulary.required("unknown_token_id", "texts may have characters without a token")
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
        "post_processor": vocabulary.ends(False, True),
        "decoder": _blanks_back(has_prefix),
        "model": {
            "type": "Unigram",
            "unk_id": vocabulary.ids[unknown],
            "vocab": _scored(vocabulary),
            "byte_fallback": any(vocabulary.of_type(TokenType.BYTE)),
        },
    }


def _blanks_of_unigrams(vocabulary: Vocabulary, has_prefix: bool) -> tuple[list[Json], list[Json]]:
    """What is done to blanks before words are cut, and how they are cut: as SentencePiece does.

    Where blanks in a row are one, and one is in front, as transformers does for XLM-RoBERTa, of which such files are.
    """
    cut = {"type": "Metaspace", "replacement": BLANK, "prepend_scheme": "never", "split": True}
    if not vocabulary.keys.flag("remove_extra_whitespaces", False):
        # A piece may go on behind a blank, or be several.
        split = not any(BLANK in text[1:] for text in vocabulary.tokens)
        return [_PREFIXED] if has_prefix else [], [cut | {"split": split}]
    if has_prefix:
        return [], [{"type": "WhitespaceSplit"}, cut | {"prepend_scheme": "always"}]
    return [_replaced("^ +| +$", ""), _replaced(" {2,}", " ")], [cut]


def _replaced(expression: str, content: str) -> Json:
    return {"type": "Replace", "pattern": {"Regex": expression}, "content": content}


_MOST_UNIGRAM_CHARS: Final = 2**22
"""The library takes up to 1 KiB for each; XLM-RoBERTa's 250,000 tokens have about 2 million."""


def _scored(vocabulary: Vocabulary) -> list[tuple[str, float]]:
    """Tokens with their scores; what only fills ids stands in no text, and sets no lowest score."""
    found = list(zip(vocabulary.tokens, vocabulary.scores(), strict=True))
    unused = dict(vocabulary.of_type(TokenType.UNUSED))
    used = (score for id_, (_, score) in enumerate(found) if id_ not in unused)
    lowest = min(used, default=0.0)
    for id_, token in unused.items():
        # A blank is no character of normalized texts.
        found[id_] = (f" {token}", lowest)
    return found


def _word_pieces(vocabulary: Vocabulary) -> Json:
    keys = vocabulary.keys
    lowers = keys.flag("normalizer.lowercase", not _has_capitals(vocabulary))
    begin = "cls_token_id" if keys.get("bos_token_id") is None else "bos_token_id"
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": keys.flag("normalizer.strip_accents", lowers),
            "lowercase": lowers,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": vocabulary.around(begin, "seperator_token_id"),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": vocabulary.required("unknown_token_id", "words may have no tokens"),
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary.ids,
        },
    }


def _has_capitals(vocabulary: Vocabulary) -> bool:
    """Whether it is a vocabulary of texts that keep their case: what older files do not say."""
    words = [text for _, text in vocabulary.of_type(TokenType.NORMAL) if not text.startswith("[")]
    return sum(map(bool, map(_CAPITAL.search, words))) > len(words) // 100


_CAPITAL: Final = re.compile("[A-Z]")

_KINDS: Final = {
    "gpt2": _byte_level,
    "llama": _pieces,
    UNIGRAM: _unigram,
    WORD_PIECES: _word_pieces,
}


def tokenizer_config(model: GgufModel) -> Json:
    """What tokenizer_config.json would hold: special tokens and chat templates."""
    vocabulary = Vocabulary(model)
    named = {name: vocabulary.special(key) for name, key in _SPECIAL_TOKENS.items()}
    config: Json = {name: token for name, token in named.items() if token is not None}
    # Their ids, without the whole of tokenizer.json.
    config["added_tokens_decoder"] = {str(token["id"]): token for token in vocabulary.added()}
    keys = Keys(model, "tokenizer")
    templates = {"default": keys.text("chat_template")}
    if keys.get("chat_templates") is not None:
        names = keys.texts("chat_templates")
        if len(names) > len(model.metadata):
            raise keys.bad("chat_templates", f"at most {len(model.metadata)}, its number of keys")
        templates |= {name: keys.text(f"chat_template.{name}") for name in names}
    there = [{"name": n, "template": text} for n, text in templates.items() if text is not None]
    return config | ({"chat_template": there} if there else {})


def generation_config(model: GgufModel) -> Mapping[str, Any]:
    """What generation_config.json would hold: the tokens that end an answer, and recommended sampling."""
    vocabulary = Vocabulary(model)
    named = [vocabulary.special(key) for key in _END_KEYS]
    control = {text for _, text in vocabulary.of_type(TokenType.CONTROL)}
    texts = control & _END_TEXTS
    if control & _HARMONY:
        texts -= {_HARMONY_MESSAGE_END}
    ids = {vocabulary.ids[text] for text in (*named, *texts) if text is not None}
    sampling = Keys(model, "general.sampling")
    recommended = {
        ours: sampling.number(key)
        for key, ours in _SAMPLING.items()
        if sampling.get(key) is not None
    }
    return {"eos_token_id": sorted(ids), **recommended}
