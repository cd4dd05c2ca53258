"""The tokenizer of one model folder, the bytes of its tokens, and the tokens of forbidden words.

Owns tokenizer.json (through the `tokenizers` library), the special tokens and the chat template.
Ids equal those of transformers' AutoTokenizer for the same folder.

With byte-level BPE (GPT-2, Llama 3, Qwen, the demo model) a text is nothing but the bytes of its tokens in a row: it
can grow by a table and a UTF-8 decoder. All others (SentencePiece, WordPiece) decode a token otherwise at the beginning
of a text than within it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import tokenizers

from pagemesh.errors import ConfigError
from pagemesh.gguf.documents import has_file, read_file
from pagemesh.tokenizer.added_tokens import add_declared_tokens
from pagemesh.tokenizer.chat_template import ChatTemplate
from pagemesh.tokenizer.chat_templates import load_chat_templates
from pagemesh.tokenizer.folder import read_json, special_tokens


def encode_bad_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Ids of each word as it begins a text and as it follows a space, each once.

    vLLM leaves the second form out where it has another number of tokens, and lets the word pass there.
    """
    forms = [form for word in words for form in (word.lstrip(), f" {word.lstrip()}")]
    encoded = tokenizer.encode_batch(forms, add_special_tokens=False)
    return tuple(dict.fromkeys(tuple(ids) for ids in encoded if ids))


_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
# GPT-2's alphabet: printable characters stand for themselves, other bytes for those from U+0100 on.
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + index): byte for index, byte in enumerate(_OTHERS)
}
_FALLBACK = re.compile("<0x([0-9A-F]{2})>")


class ByteTokens:
    """A table that fills as it is used."""

    def __init__(self, id_to_token: Callable[[int], str | None]) -> None:
        self._id_to_token = id_to_token
        self._known: dict[int, bytes] = {}

    @classmethod
    def of(cls, library: tokenizers.Tokenizer) -> Self | None:
        """The table of a tokenizer; None where texts are more than that."""
        return cls(library.id_to_token) if _decoder_types(library) == ["ByteLevel"] else None

    def __getitem__(self, token_id: int) -> bytes:
        """The bytes of a token; none for an id that the vocabulary does not have."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._read(token_id)
        return known

    def _read(self, token_id: int) -> bytes:
        token = self._id_to_token(token_id) or ""
        try:
            return bytes(_BYTES[char] for char in token)
        # An added token is written as it is.
        except KeyError:
            return token.encode()


def has_byte_fallback(library: tokenizers.Tokenizer) -> bool:
    """Whether tokens such as `<0xF0>` stand for bytes of which other tokens have no text."""
    return "ByteFallback" in _decoder_types(library)


def fallback_byte(token: str) -> bytes | None:
    """The byte for which such a token stands; None for all others."""
    found = _FALLBACK.fullmatch(token)
    return None if found is None else bytes.fromhex(found[1])


def _decoder_types(library: tokenizers.Tokenizer) -> list[str]:
    if library.decoder is None:
        return []
    decoder: Any = json.loads(library.decoder.__getstate__())
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return [part["type"] for part in parts]


NUM_INLINE_CHARS = 8192
"""Texts up to this length are tokenized on the event loop (well under 5 ms); longer ones in a thread."""

_LIKELY_CHARS_PER_TOKEN = 8
"""Hardly any text has more characters per token than this."""


class Tokenizer:
    """Text to ids and back. Immutable after construction, usable from any thread."""

    def __init__(self, folder: Path) -> None:
        """Load the tokenizer of a model folder; raises ConfigError naming the file that is wrong."""
        path = folder / "tokenizer.json"
        if not has_file(path):
            raise ConfigError(f"{folder} has no tokenizer.json")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(read_file(path))
        except ConfigError:
            raise
        # The library raises bare Exception for every fault of the file.
        except Exception as error:
            raise ConfigError(f"{path} is not a tokenizer: {error}") from error
        # Both would change prompts silently; transformers turns them off too unless asked.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        own_ids = self._own_ids()
        add_declared_tokens(self._tokenizer, folder)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_token_ids = frozenset(id_ for id_, token in added.items() if token.special)
        self._added_token_ids = {token.content: id_ for id_, token in added.items()}
        self._added_texts = {id_: token.content for id_, token in added.items()}
        self._has_byte_fallback = has_byte_fallback(self._tokenizer)
        self.byte_tokens = ByteTokens.of(self._tokenizer)
        """Where texts are the bytes of their tokens in a row."""
        self.vocab_size = self._vocab_size(folder)
        self._check_ids(folder, own_ids)
        self.settings = read_json(folder, "tokenizer_config.json")
        """What its folder says of it beside the vocabulary."""
        self.template_variables = special_tokens(folder)
        """Special tokens by their names in chat templates."""
        self.chat_templates = load_chat_templates(folder, self.template_variables)

    @property
    def chat_template(self) -> ChatTemplate:
        """The one for plain conversations; raises UnsupportedError when the model has none."""
        return self.chat_templates.choose()

    def added_token_id(self, text: str) -> int | None:
        """The id of a text that is a token beside the vocabulary's, special or not; None for all others."""
        return self._added_token_ids.get(text)

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of a text, without blocking the event loop for long ones."""
        return await _beside_the_loop(self._encode, text, add_special_tokens)

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Ids of several texts, on several cores; for callers without an event loop."""
        encodings = self._tokenizer.encode_batch_fast(
            list(texts), add_special_tokens=add_special_tokens
        )
        return [encoding.ids for encoding in encodings]

    async def has_more_than(self, num_tokens: int, text: str) -> bool:
        """Whether a text is certainly longer, found out from as short a prefix as will do.

        Keeps megabytes that fit into no context from being tokenized to their end.
        """
        num_chars = _LIKELY_CHARS_PER_TOKEN * num_tokens
        while num_chars < len(text):
            ids = await self.encode(text[:num_chars], add_special_tokens=False)
            # The last word is cut: without it, the prefix's tokens are the text's.
            if len(ids) - _LIKELY_CHARS_PER_TOKEN > num_tokens:
                return True
            num_chars *= 4
        return False

    async def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of a conversation rendered with the chat template, ready for the assistant's answer."""
        # The template writes the special tokens itself.
        return await self.encode(self.chat_template.render(messages), add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ids; incomplete characters become U+FFFD."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text, in which it is not the first; none for ids without a token.

        A special token has its name. Decoded alone, a part of a character would have no bytes of its own, and a
        token that begins a word would lose its blank.
        """
        if self.byte_tokens is not None:
            return self.byte_tokens[token_id]
        if token_id in self._added_texts:
            return self._added_texts[token_id].encode()
        token = self._tokenizer.id_to_token(token_id) or ""
        byte = fallback_byte(token) if self._has_byte_fallback else None
        if byte is not None:
            return byte
        once, twice = (self.decode([token_id] * n, skip_special_tokens=False) for n in (1, 2))
        return (twice[len(once) :] if twice.startswith(once) else once).encode()

    async def encode_places(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """For each token of a text, as `encode` gives them, the number of characters before it.

        Tokens of one character have the same place. Special tokens that are no part of the text have none of it.
        """
        return await _beside_the_loop(partial(_places, self._tokenizer), text, add_special_tokens)

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """The tokens as the vocabulary spells them; "" for ids that it does not have."""
        return [self._tokenizer.id_to_token(token_id) or "" for token_id in token_ids]

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # Of the library's functions only those for batches release the GIL while they work.
        return self.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def _vocab_size(self, folder: Path) -> int:
        """Ids below this have an embedding: the model's own number, else the tokenizer's."""
        config = read_json(folder, "config.json")
        config = config.get("text_config", config)
        size = config.get("vocab_size", self._tokenizer.get_vocab_size(with_added_tokens=True))
        if not isinstance(size, int) or size <= 0:
            raise ConfigError(f"{folder / 'config.json'}: vocab_size is {size!r}")
        return size

    def _own_ids(self) -> list[int]:
        return list(self._tokenizer.get_vocab(with_added_tokens=True).values())

    def _check_ids(self, folder: Path, ids: Iterable[int]) -> None:
        """Raise ConfigError when a text could have one of these ids for which the model has no embedding.

        Special tokens and those that other files declare may lie outside, as Gemma 3's for images do in models
        without images: no text has them unless it asks for them, and then the request is refused.
        """
        largest = max((i for i in ids if i not in self.special_token_ids), default=0)
        if largest >= self.vocab_size:
            raise ConfigError(
                f"{folder / 'tokenizer.json'} has the token id {largest}, but "
                f"{folder / 'config.json'} has a vocab_size of {self.vocab_size}: they are not of the "
                "same model"
            )


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """What a token adds to a text, in which it is not the first; a part of a character is U+FFFD."""
    return tokenizer.token_bytes(token_id).decode("utf-8", "replace")


async def _beside_the_loop(
    work: Callable[[str, bool], list[int]], text: str, add_special_tokens: bool
) -> list[int]:
    """What becomes of a text, in a thread where that takes long."""
    if len(text) <= NUM_INLINE_CHARS:
        return work(text, add_special_tokens)
    return await asyncio.to_thread(work, text, add_special_tokens)


def _places(library: tokenizers.Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    (encoding,) = library.encode_batch([text], add_special_tokens=add_special_tokens)
    places, end_before = [], 0
    for start, end in encoding.offsets:
        places.append(start if end > start else end_before)
        end_before = max(end_before, end)
    return places
