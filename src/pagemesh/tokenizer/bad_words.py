"""Forbidden words as the token sequences that would write them."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.tokenizer.tokenizer import Tokenizer


def encode_bad_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Ids of each word as it begins a text and as it follows a space, each once.

    vLLM leaves the second form out where it has another number of tokens, and lets the word pass there.
    """
    forms = [form for word in words for form in (word.lstrip(), f" {word.lstrip()}")]
    encoded = tokenizer.encode_batch(forms, add_special_tokens=False)
    return tuple(dict.fromkeys(tuple(ids) for ids in encoded if ids))
