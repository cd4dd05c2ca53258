"""From a GGUF file's metadata to tokenizer.json, tokenizer_config.json and generation_config.json.

Byte-level BPE (`gpt2`) and SentencePiece's scores (`llama`), which become BPE with merges in the order of the scores, as
transformers converts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from pagemesh.errors import ConfigError
from pagemesh.gguf.keys import Keys
from pagemesh.gguf.model import GgufModel
from pagemesh.gguf.pre_tokenizers import BYTE_LEVEL, PRE_TOKENIZERS, PreTokenizer

Json = dict[str, Any]

_PREFIX: Final = "tokenizer.ggml"
_BLANK: Final = "▁"
_SPECIAL_TOKENS: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",
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


class _Type(IntEnum):
    """Of tokens, as ggml numbers them."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class _Vocabulary:
    """The tokens, what they are, and the ids with a meaning; ConfigError for what cannot be."""

    def __init__(self, model: GgufModel) -> None:
        self.keys = Keys(model, _PREFIX)
        self.tokens: Sequence[str] = list(self.keys.texts("tokens"))
        count = len(self.tokens)
        self.types: Sequence[int] = (
            [_Type.NORMAL] * count
            if self.keys.get("token_type") is None
            else self.keys.numbers("token_type", count)
        )
        self.ids = {token: id_ for id_, token in enumerate(self.tokens)}
        if len(self.ids) < count:
            twice = next(t for id_, t in enumerate(self.tokens) if self.ids[t] != id_)
            raise ConfigError(f"{model.path} has the token {twice!r} twice in {_PREFIX}.tokens")

    def special(self, key: str) -> str | None:
        """The token whose id a key says."""
        id_ = self.keys.get(key)
        if id_ is None:
            return None
        if type(id_) is not int or not 0 <= id_ < len(self.tokens):
            raise self.keys.bad(key, f"an id below {len(self.tokens)}")
        return self.tokens[id_]

    def of_type(self, *types: _Type) -> Iterator[tuple[int, str]]:
        """Ids and texts."""
        for id_, type_ in enumerate(self.types):
            if type_ in types:
                yield id_, self.tokens[id_]

    def added(self) -> list[Json]:
        """Tokens that are found in a text before it is cut."""
        return [
            {
                "id": id_,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": self.types[id_] != _Type.USER_DEFINED,
            }
            for id_, text in self.of_type(_Type.UNKNOWN, _Type.CONTROL, _Type.USER_DEFINED)
            if text
        ]

    def ends(self, adds_begin: bool, adds_end: bool, between: Sequence[Json]) -> Json | None:
        """What puts the tokens of begin and end around a text."""
        begin = self._required("bos_token_id") if adds_begin else None
        end = self._required("eos_token_id") if adds_end else None
        around = [token for token in (begin, end) if token is not None]
        if not around:
            return between[0] if between else None
        single = [_special(begin, 0), {"Sequence": {"id": "A", "type_id": 0}}, _special(end, 0)]
        pair = [
            *single,
            _special(begin, 1),
            {"Sequence": {"id": "B", "type_id": 1}},
            _special(end, 1),
        ]
        template = {
            "type": "TemplateProcessing",
            "single": [part for part in single if part],
            "pair": [part for part in pair if part],
            "special_tokens": {
                token: {"id": token, "ids": [self.ids[token]], "tokens": [token]}
                for token in around
            },
        }
        return {"type": "Sequence", "processors": [*between, template]} if between else template

    def _required(self, key: str) -> str:
        token = self.special(key)
        if token is None:
            raise self.keys.bad(key, "there, since texts get this token")
        return token


def _special(token: str | None, type_id: int) -> Json | None:
    return None if token is None else {"SpecialToken": {"id": token, "type_id": type_id}}


def tokenizer_json(model: GgufModel) -> Json:
    """What tokenizer.json would hold; ConfigError for a kind that is not known here, by its name."""
    vocabulary = _Vocabulary(model)
    kind = vocabulary.keys.text("model")
    make = _KINDS.get(kind or "")
    if make is None:
        raise vocabulary.keys.bad("model", " or ".join(_KINDS))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added(),
        **make(vocabulary),
    }


def _byte_level(vocabulary: _Vocabulary) -> Json:
    keys = vocabulary.keys
    name = keys.text("pre") or "default"
    kind = PRE_TOKENIZERS.get(name)
    if kind is None:
        raise keys.bad("pre", f"one of {', '.join(PRE_TOKENIZERS)}")
    keys.require("add_space_prefix", (False,))
    # A merge has one blank, and no token of GPT-2's alphabet has any.
    merges = [merge.partition(" ")[::2] for merge in keys.texts("merges")]
    return {
        "normalizer": {"type": "NFC"} if kind.normalizes else None,
        "pre_tokenizer": kind.settings,
        "post_processor": vocabulary.ends(*_adds(keys, kind), [BYTE_LEVEL]),
        "decoder": BYTE_LEVEL,
        "model": _bpe(vocabulary, merges, ignore_merges=kind.ignores_merges),
    }


def _adds(keys: Keys, kind: PreTokenizer) -> tuple[bool, bool]:
    return keys.flag("add_bos_token", kind.adds_begin), keys.flag("add_eos_token", False)


def _pieces(vocabulary: _Vocabulary) -> Json:
    keys = vocabulary.keys
    scores = keys.numbers("scores", len(vocabulary.tokens))
    has_bytes = any(vocabulary.of_type(_Type.BYTE))
    has_prefix = keys.flag("add_space_prefix", True)
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": _BLANK}
    prefix = [{"type": "Prepend", "prepend": _BLANK}] if has_prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else []
    begin, end = keys.flag("add_bos_token", True), keys.flag("add_eos_token", False)
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, blanks]},
        "pre_tokenizer": None,
        "post_processor": vocabulary.ends(begin, end, []),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _BLANK}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *strip,
            ],
        },
        "model": _bpe(
            vocabulary,
            list(_merges(vocabulary, scores)),
            unk_token=vocabulary.special("unknown_token_id"),
            fuse_unk=True,
            byte_fallback=has_bytes,
        ),
    }


def _merges(vocabulary: _Vocabulary, scores: Sequence[float]) -> Iterator[tuple[str, str]]:
    """All ways to make a piece of two others, the piece of the highest score first."""
    ids = vocabulary.ids
    candidates = [
        id_ for id_, text in vocabulary.of_type(_Type.NORMAL, _Type.UNUSED) if len(text) > 1
    ]
    for id_ in sorted(candidates, key=lambda id_: -scores[id_]):
        text = vocabulary.tokens[id_]
        pairs = [(text[:at], text[at:]) for at in range(1, len(text))]
        found = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
        yield from sorted(found, key=lambda pair: (ids[pair[0]], ids[pair[1]]))


def _bpe(vocabulary: _Vocabulary, merges: Sequence[tuple[str, ...]], **settings: Any) -> Json:
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


_KINDS: Final = {"gpt2": _byte_level, "llama": _pieces}


def tokenizer_config(model: GgufModel) -> Json:
    """What tokenizer_config.json would hold: special tokens and chat templates."""
    vocabulary = _Vocabulary(model)
    named = {name: vocabulary.special(key) for name, key in _SPECIAL_TOKENS.items()}
    config: Json = {name: token for name, token in named.items() if token is not None}
    # Their ids, without the whole of tokenizer.json.
    config["added_tokens_decoder"] = {str(token["id"]): token for token in vocabulary.added()}
    keys = Keys(model, "tokenizer")
    templates = {"default": keys.text("chat_template")}
    if keys.get("chat_templates") is not None:
        templates |= {
            name: keys.text(f"chat_template.{name}") for name in keys.texts("chat_templates")
        }
    there = [{"name": n, "template": text} for n, text in templates.items() if text is not None]
    return config | ({"chat_template": there} if there else {})


def generation_config(model: GgufModel) -> Mapping[str, Any]:
    """What generation_config.json would hold: the tokens that end an answer, and recommended sampling."""
    vocabulary = _Vocabulary(model)
    named = [vocabulary.special(key) for key in _END_KEYS]
    control = {text for _, text in vocabulary.of_type(_Type.CONTROL)}
    texts = control & _END_TEXTS
    if control & _HARMONY:
        texts -= {_HARMONY_MESSAGE_END}
    ids = {vocabulary.ids[text] for text in (*named, *texts) if text is not None}
    sampling = Keys(model, "general.sampling")
    recommended = {ours: sampling.get(key) for key, ours in _SAMPLING.items()}
    return {"eos_token_id": sorted(ids)} | {
        name: value for name, value in recommended.items() if value is not None
    }
