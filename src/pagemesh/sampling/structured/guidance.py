"""Grammars and masks by llguidance (https://github.com/guidance-ai/llguidance).

It walks the grammar and a trie of the vocabulary together for each mask, so there is next to nothing to
compile, and its limits bound the work of each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import llguidance
import numpy as np
import numpy.typing as npt

from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.sampling.structured.constraint import TokenConstraint
from pagemesh.sampling.structured.outputs import PARAM, StructuredKind, StructuredOutputs

_MAX_MESSAGE_CHARS: Final = 300

_MAX_LEXER_STATES: Final = 50_000
"""States of the expressions in a grammar, 1 to 2 kB each, that one request can make; a fifth of the
library's default, and far more than outputs need."""


class GuidanceBackend:
    """Implements `GrammarBackend`."""

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Read the model folder's tokenizer.json; UnsupportedError when it is missing or of no use."""
        path = folder / "tokenizer.json"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UnsupportedError(
                f"structured output needs {path}, which cannot be read: {error.strerror}",
                param=PARAM,
            ) from error
        try:
            tokenizer = llguidance.LLTokenizer(text, eos_token=list(eos_token_ids) or None)
            # The model's vocabulary may be padded: its further ids stand for no text.
            if tokenizer.vocab_size < vocab_size:
                tokenizer = llguidance.LLTokenizer(
                    text, n_vocab=vocab_size, eos_token=list(eos_token_ids) or None
                )
        except (ValueError, RuntimeError) as error:
            raise UnsupportedError(
                f"structured output is not possible with {path}: {_one_line(str(error))}",
                param=PARAM,
            ) from error
        self._tokenizer = tokenizer
        self._limits = llguidance.LLParserLimits(
            max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False
        )
        self._vocabulary = _Vocabulary(vocab_size, eos_token_ids, tokenizer.eos_tokens)

    def compile(self, outputs: StructuredOutputs) -> GuidanceGrammar:
        """Compile and compute the first mask, which tells whether anything satisfies the grammar."""
        name = f"structured_outputs.{outputs.kind.value}"
        try:
            text = _grammar_text(outputs)
        except ValueError as error:
            raise _refusal(f"{name} cannot be compiled", str(error)) from error
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise _refusal(f"{name} cannot be compiled", matcher.get_error())
        first = matcher.deep_copy()
        first.compute_bitmask()
        if first.is_error():
            raise _refusal(f"{name} allows no output", first.get_error())
        return GuidanceGrammar(matcher, self._vocabulary)


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

    @property
    def is_over(self) -> bool:
        """Whether the output is complete and nothing can follow it."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def accept(self, token_id: int) -> bool:
        """Move on past a token."""
        return self._matcher.consume_token(token_id)

    def fill_mask(self, mask: npt.NDArray[np.int32], *, may_end: bool) -> None:
        """Set the bits of the tokens that may come next."""
        allowed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)
        if self._matcher.is_error():
            raise _refusal("the structured output cannot be continued", self._matcher.get_error())
        vocabulary = self._vocabulary
        np.bitwise_and(allowed[: len(mask)], vocabulary.known, out=mask)
        if not may_end:
            others = mask & vocabulary.not_ends
            if others.any():
                mask[:] = others
        if not mask.any():
            raise _refusal("the structured output cannot be continued", "no token may follow")


class _Vocabulary:
    """Bits of the model's ids, int32 [ceil(vocab / 32)] each."""

    def __init__(self, size: int, ends: Sequence[int], tokenizer_ends: Sequence[int]) -> None:
        self.known = _bits(size, set(range(size)) - (set(tokenizer_ends) - set(ends)))
        """Ids that exist; without an end of sequence that the tokenizer knows and the model does not."""
        self.not_ends = ~_bits(size, ends)
        """All but the ends of sequence."""


def _bits(size: int, token_ids: Sequence[int] | set[int]) -> npt.NDArray[np.int32]:
    flags = np.zeros(-(-size // 32) * 32, dtype=np.bool_)
    flags[[token_id for token_id in token_ids if token_id < size]] = True
    return np.packbits(flags, bitorder="little").view(np.int32)


def _grammar_text(outputs: StructuredOutputs) -> str:
    """The library's own form of a grammar; ValueError when it cannot be converted."""
    match outputs.kind:
        case StructuredKind.REGEX:
            return llguidance.LLMatcher.grammar_from_regex(outputs.text)
        case StructuredKind.CHOICE:
            return llguidance.grammar_from("choice", outputs.text)
        case StructuredKind.GRAMMAR:
            return llguidance.grammar_from("grammar", outputs.text)
    schema = outputs.text if outputs.kind is StructuredKind.JSON else '{"type": "object"}'
    return llguidance.LLMatcher.grammar_from_json_schema(
        schema,
        overrides={
            "whitespace_flexible": not outputs.disable_any_whitespace,
            "whitespace_pattern": outputs.whitespace_pattern,
        },
    )


def _refusal(what: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"{what}: {_one_line(why)}", param=PARAM)


def _one_line(text: str) -> str:
    """The library's message without its pictures of places."""
    line = " ".join(text.removesuffix("<non-verbose/>").split())
    return line if len(line) <= _MAX_MESSAGE_CHARS else f"{line[:_MAX_MESSAGE_CHARS]}…"
