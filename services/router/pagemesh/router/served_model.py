"""The model that a router serves, as requests see it: name, tokenizer, defaults, context."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from pagemesh.config import ApiConfig, RequestLogConfig, RouterConfig
from pagemesh.config.served import NamedModel
from pagemesh.errors import ContextLengthError, InvalidRequestError
from pagemesh.models.resolve import resolve_model_path
from pagemesh.router.chat.rendering import Rendering
from pagemesh.router.chat.rules import ChatRules
from pagemesh.router.openai.truncation import Truncation
from pagemesh.router.request_lines import RequestLines
from pagemesh.sampling.params import MAX_BAD_WORDS, MAX_BAD_WORDS_TOKENS, Seeds
from pagemesh.tokenizer.model_defaults import (
    GenerationDefaults,
    Matryoshka,
    load_generation_defaults,
)
from pagemesh.tokenizer.tokenizer import NUM_INLINE_CHARS, Tokenizer, encode_bad_words


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Everything about the model that does not change while the router lives."""

    name: str
    tokenizer: Tokenizer
    defaults: GenerationDefaults

    created: int
    """Unix time at which the router began to serve it."""

    matryoshka: Matryoshka
    """Which lengths its embeddings may have."""

    chat: ChatRules = field(default_factory=ChatRules)
    """What holds for conversations with it."""

    rendering: Rendering = field(default_factory=Rendering)
    """How conversations become prompts."""

    api: ApiConfig = field(default_factory=ApiConfig)
    """What requests may ask for."""

    seeds: Seeds = field(default_factory=Seeds)
    """Of requests that bring none."""

    source: str = ""
    """Where it comes from, as the settings have it."""

    @classmethod
    def load(cls, named: NamedModel, config: RouterConfig) -> Self:
        """Load the model's tokenizer; ConfigError naming what is wrong with its folder."""
        folder = resolve_model_path(named.source, config.hub, need="tokenizer")
        tokenizer = Tokenizer(folder)
        return cls(
            name=named.name,
            tokenizer=tokenizer,
            defaults=load_generation_defaults(folder, config.generation),
            created=int(time.time()),
            matryoshka=Matryoshka.read(folder),
            seeds=Seeds(config.generation.seed),
            source=named.source,
            chat=ChatRules.of(config.chat, tokenizer),
            api=config.api,
        )

    def request_lines(self, config: RequestLogConfig) -> RequestLines:
        """What the log says of its requests."""
        return RequestLines(config, self.name, self.tokenizer)

    async def encode_prompt(
        self,
        text: str,
        field: str,
        max_model_len: int,
        *,
        add_special_tokens: bool = True,
        truncation: Truncation | None = None,
    ) -> list[int]:
        """Ids of a plain prompt; InvalidRequestError when there are none or far too many."""
        ids = await self._encode(text, field, max_model_len, add_special_tokens, truncation)
        if not ids:
            raise InvalidRequestError(f"{field} is empty", param=field)
        return ids

    async def encode_rendered(
        self,
        text: str,
        field: str,
        max_model_len: int,
        *,
        add_special_tokens: bool = False,
        truncation: Truncation | None = None,
    ) -> list[int]:
        """Ids of what a chat template made, which writes the special tokens itself; raises as for prompts."""
        if not text:
            raise InvalidRequestError(
                f"the chat template makes an empty prompt of {field}", param=field
            )
        return await self._encode(text, field, max_model_len, add_special_tokens, truncation)

    async def _encode(
        self,
        text: str,
        field: str,
        max_model_len: int,
        add_special_tokens: bool,
        truncation: Truncation | None,
    ) -> list[int]:
        if truncation is None:
            await self._check_length(text, field, max_model_len)
        ids = await self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        if truncation is None:
            return ids
        if truncation.keeps_special and add_special_tokens and len(ids) > truncation.num_tokens:
            text_ids = await self.tokenizer.encode(text, add_special_tokens=False)
            return truncation.cut_within(ids, text_ids)
        return truncation.cut(ids)

    async def _check_length(self, text: str, field: str, max_model_len: int) -> None:
        if await self.tokenizer.has_more_than(max_model_len, text):
            raise ContextLengthError.beyond(
                max_model_len,
                f"the prompt has {len(text)} characters and more tokens than that",
                field,
            )

    def encode_bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Ids of words that must not be in an answer; InvalidRequestError for blank or too many ones."""
        if any(not word.strip() for word in words):
            raise InvalidRequestError("bad_words contains a blank word", param="bad_words")
        num_chars = sum(map(len, words))
        if num_chars > NUM_INLINE_CHARS:  # tokenized at once, while nobody else is served
            raise InvalidRequestError(
                f"bad_words has {num_chars} characters, but at most {NUM_INLINE_CHARS} are allowed",
                param="bad_words",
            )
        sequences = encode_bad_words(words, self.tokenizer)
        num_tokens = sum(map(len, sequences))
        if len(sequences) > MAX_BAD_WORDS or num_tokens > MAX_BAD_WORDS_TOKENS:
            raise InvalidRequestError(
                f"bad_words can be written as {len(sequences)} sequences of {num_tokens} tokens, but at "
                f"most {MAX_BAD_WORDS} and {MAX_BAD_WORDS_TOKENS} are allowed",
                param="bad_words",
            )
        return sequences

    def check_token_ids(self, token_ids: list[int], field: str) -> list[int]:
        """The ids of a prompt, unless one of them is not in the vocabulary or there are none."""
        if not token_ids:
            raise InvalidRequestError(f"{field} is empty", param=field)
        largest = max(token_ids)
        if largest >= self.tokenizer.vocab_size:
            raise InvalidRequestError(
                f"{field} has the token id {largest}, but the model's ids end at "
                f"{self.tokenizer.vocab_size - 1}",
                param=field,
            )
        return token_ids
