"""Grammars and masks by llguidance (https://github.com/guidance-ai/llguidance).

It walks the grammar and a trie of the vocabulary together for each mask, so there is next to nothing to
compile, and its limits bound the work of each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import llguidance
import numpy as np
import numpy.typing as npt

from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.sampling.structured.constraint import TokenConstraint
from pagemesh.sampling.structured.matcher import make_matcher, one_line, refusal
from pagemesh.sampling.structured.outputs import PARAM, StructuredOutputs
from pagemesh.tokenizer.added_tokens import tokenizer_text

_NOT_ALLOWED: Final = "doesn't satisfy the grammar"
"""What the library says of a token that may not come; all else are its limits."""


class GuidanceBackend:
    """Implements `GrammarBackend`."""

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Read the model folder's tokenizer.json; UnsupportedError when it is missing or of no use."""
        if not eos_token_ids:
            raise UnsupportedError(
                "structured output needs a model that names an end of sequence, by which it ends",
                param=PARAM,
            )
        path = folder / "tokenizer.json"
        try:
            text = tokenizer_text(folder)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UnsupportedError(
                f"structured output needs {path}, which cannot be read: {reason}",
                param=PARAM,
            ) from error
        ends = list(eos_token_ids)
        try:
            tokenizer = _read_tokenizer(text, vocab_size, ends)
        except ValueError as error:
            raise UnsupportedError(
                f"structured output is not possible with {path}: {one_line(str(error))}",
                param=PARAM,
            ) from error
        self._tokenizer = tokenizer
        self._vocabulary = _Vocabulary(tokenizer, vocab_size, frozenset(ends))

    def compile(self, outputs: StructuredOutputs) -> GuidanceGrammar:
        return GuidanceGrammar(make_matcher(self._tokenizer, outputs), self._vocabulary)


class GuidanceGrammar:
    """Implements `Grammar`: a matcher that stays at the beginning."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: _Vocabulary) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def start(self) -> TokenConstraint:
        """A constraint that has accepted nothing yet."""
        return GuidanceConstraint(self._matcher.deep_copy(), self._vocabulary)


class GuidanceConstraint:
    """Implements `TokenConstraint`."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: _Vocabulary) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether an end of sequence was accepted."""
        return self._is_over

    def allows(self, token_id: int) -> bool:
        """Whether a token may come next."""
        # The library's own question says no to an end of sequence where nothing else may come.
        return not self._is_over and self._matcher.deep_copy().consume_token(token_id)

    def accept(self, token_id: int) -> bool:
        """Move on past a token."""
        if self._is_over:
            return False
        if not self._matcher.consume_token(token_id):
            error = self._matcher.get_error()
            if _NOT_ALLOWED not in error:
                raise _no_continuation(error)
            return False
        self._is_over = token_id in self._vocabulary.ends
        return True

    def fill_mask(self, mask: npt.NDArray[np.int32], avoid: Sequence[int] = ()) -> None:
        """Set the bits of the tokens that may come next."""
        self._vocabulary.fill(self._matcher, mask)
        if self._matcher.is_error():
            raise _no_continuation(self._matcher.get_error())
        if avoid:
            others = mask.copy()
            words = others.view(np.uint32)
            for token_id in avoid:
                words[token_id // 32] &= ~np.uint32(1 << token_id % 32)
            if others.any():
                mask[:] = others
        if not mask.any():
            raise _no_continuation("no token may follow")


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """How the ids of tokenizer and model go together."""

    tokenizer: llguidance.LLTokenizer
    """Has bits for at least as many ids as the model has."""

    size: int
    """Ids of the model."""

    ends: frozenset[int]
    """Its ends of sequence."""

    def fill(self, matcher: llguidance.LLMatcher, mask: npt.NDArray[np.int32]) -> None:
        """Set the bits of what the matcher allows, in int32 [ceil(size / 32)]."""
        # The library writes to an address: five times as fast as bytes that are copied here.
        assert mask.flags.c_contiguous
        num_words = -(-self.tokenizer.vocab_size // 32)
        whole = mask if len(mask) == num_words else np.empty(num_words, dtype=np.int32)
        matcher.unsafe_compute_mask_ptr(whole.ctypes.data, whole.nbytes)
        if whole is not mask:
            mask[:] = whole[: len(mask)]
        if self.size % 32:
            mask[-1] &= (1 << self.size % 32) - 1
        self._spell_out(matcher, mask)

    def _spell_out(self, matcher: llguidance.LLMatcher, mask: npt.NDArray[np.int32]) -> None:
        """Where text must come that a special token has, allow what begins it, instead of that token.

        The library names the token as the only one that may come, and then refuses it, because special
        tokens are no text to it.
        """
        if np.count_nonzero(mask) != 1:
            return
        word = int(np.flatnonzero(mask)[0])
        bits = int(mask[word]) & 0xFFFFFFFF
        token_id = word * 32 + bits.bit_length() - 1
        if bits & (bits - 1) or not self.tokenizer.is_special_token(token_id):
            return
        text = matcher.compute_ff_bytes()
        if text and not matcher.deep_copy().consume_token(token_id):
            first = self.tokenizer.tokenize_bytes(text[:1])[0]
            mask[:] = 0
            mask.view(np.uint32)[first // 32] = 1 << first % 32


def _read_tokenizer(text: str, vocab_size: int, ends: list[int]) -> llguidance.LLTokenizer:
    """ValueError when the library has no use for it."""
    try:
        # A model's vocabulary may be padded: its further ids stand for no text, and are never allowed.
        return llguidance.LLTokenizer(text, n_vocab=vocab_size, eos_token=ends)
    except ValueError:
        # Or the tokenizer knows more ids than the model. Whatever else is wrong is found once more.
        return llguidance.LLTokenizer(text, eos_token=ends)


def _no_continuation(why: str) -> InvalidRequestError:
    return refusal("the structured output cannot be continued", why)
