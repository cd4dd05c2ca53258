"""What is done to texts before tokens are found in them, as the `tokenizers` library has it.

How they are cut before byte-level BPE (`tokenizer.ggml.pre`), and which characters SentencePiece replaces
(`tokenizer.ggml.precompiled_charsmap`). Expressions are those of the models' own tokenizer.json; llama.cpp has them in other words (its `llama-vocab.cpp`).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pagemesh.gguf.keys import Keys

_ENDINGS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST: Final = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS: Final = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}NUMBERS| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_REST}"
_LLAMA3: Final = _WORDS.replace("NUMBERS", "{1,3}")
_QWEN2: Final = _WORDS.replace("NUMBERS", "")

_BEGIN: Final = r"[^\r\n\p{L}\p{N}]?"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SIGNS: Final = rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_REST}"
_GPT4O: Final = rf"{_BEGIN}{_UPPER}*{_LOWER}+{_ENDINGS}?|{_BEGIN}{_UPPER}+{_LOWER}*{_ENDINGS}?|\p{{N}}{{1,3}}{_SIGNS}"
_TEKKEN: Final = rf"{_BEGIN}{_UPPER}*{_LOWER}+|{_BEGIN}{_UPPER}+{_LOWER}*|\p{{N}}{_SIGNS}"


BYTE_LEVEL: Final = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": False,
    "use_regex": False,
}
"""Bytes as characters of GPT-2's alphabet, and back, whatever part of a tokenizer it is."""


class PreTokenizer(NamedTuple):
    """How a kind of tokenizer cuts, and what else differs between kinds."""

    expressions: tuple[str, ...]
    """Each cuts what the one before has left."""

    adds_begin: bool = False
    """Whether texts begin with the token for it where the file does not say."""

    ignores_merges: bool = False
    """Whether a word that is a token is taken whole."""

    normalizes: bool = False
    """Whether texts are brought into Unicode's form C."""

    @property
    def settings(self) -> dict[str, Any]:
        """As tokenizer.json has them."""
        cuts = [
            {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
            for each in self.expressions
        ]
        return {"type": "Sequence", "pretokenizers": [*cuts, BYTE_LEVEL]}


_DIGITS_APART: Final = PreTokenizer((r"\p{N}", _GPT2))
_LIKE_LLAMA3: Final = PreTokenizer((_LLAMA3,), adds_begin=True, ignores_merges=True)
_LIKE_QWEN2: Final = PreTokenizer((_QWEN2,), normalizes=True)

PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "roberta-bpe": PreTokenizer((_GPT2,)),
    "modern-bert": PreTokenizer((_GPT2,), normalizes=True),
    "smollm": _DIGITS_APART,
    "starcoder": _DIGITS_APART,
    "refact": _DIGITS_APART,
    "command-r": _DIGITS_APART,
    "codeshell": _DIGITS_APART,
    "llama-bpe": _LIKE_LLAMA3,
    "llama3": _LIKE_LLAMA3,
    "llama-v3": _LIKE_LLAMA3,
    "dbrx": PreTokenizer((_LLAMA3,)),
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "qwen2": _LIKE_QWEN2,
    "deepseek-r1-qwen": _LIKE_QWEN2,
    "megrez": _LIKE_QWEN2,
    "stablelm2": PreTokenizer((_QWEN2,)),
    "gpt-4o": PreTokenizer((_GPT4O,)),
    "llama4": PreTokenizer((_GPT4O,)),
    "tekken": PreTokenizer((_TEKKEN,), adds_begin=True, ignores_merges=True),
}
"""By llama.cpp's names."""

_CHARSMAP: Final = "precompiled_charsmap"
_MOST_CHARSMAP_BYTES: Final = 2**22
"""Those of SentencePiece itself have a quarter of a million."""


def read_charsmap(keys: Keys) -> str | None:
    """The table of replacements as tokenizer.json has it; None without one, ConfigError for one that leads astray."""
    table = keys.octets(_CHARSMAP, _MOST_CHARSMAP_BYTES)
    if not table:
        return None
    begin = 4 + int.from_bytes(table[:4], "little")
    if not 8 <= begin < len(table) or begin % 4:
        raise keys.bad(_CHARSMAP, "a table with its length in front and texts behind it")
    if not _stays_within(memoryview(table[4:begin]).cast("I"), table[begin:]):
        raise keys.bad(_CHARSMAP, "a table that leads to no place outside it")
    return b64encode(table).decode()


_IS_VALUE: Final = 1 << 31
_HAS_VALUE: Final = 1 << 8


def _stays_within(units: memoryview, texts: bytes) -> bool:
    """Whether no walk from unit to unit, and to a text, can end outside: the library does not look.

    Units are those of Darts (https://github.com/s-yata/darts-clone): a step goes from a unit, by its offset and a byte,
    to another of the same 256, and by no byte to a value, which is where a text begins.
    """
    try:
        texts.decode()
    except UnicodeDecodeError:
        return False
    for place, unit in enumerate(units):
        if unit & _IS_VALUE and place:
            continue
        target = place ^ (unit >> 10 << ((unit & 1 << 9) >> 6))
        if target | 0xFF >= len(units):
            return False
        if unit & _HAS_VALUE:
            begin = units[target] & (_IS_VALUE - 1)
            # A text begins with a character.
            if begin >= len(texts) or texts[begin] & 0xC0 == 0x80:
                return False
    return True
