"""Reads one choice of a conversation: what the generation path gives, taken apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pagemesh.router.chat.delta import ChatDelta
from pagemesh.router.generation.request import ChoiceDelta, StopReason, Usage
from pagemesh.router.parsers.call_object import is_whole
from pagemesh.router.parsers.interface import AnswerParser, Span, joined_pieces
from pagemesh.router.parsers.thought_count import ThoughtCounter
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.tokenizer.detokenizer import TokenPlace


class ChoiceReader:
    """Gives a delta for each delta; what is held back of the text comes with a later one."""

    def __init__(
        self,
        parser: AnswerParser,
        *,
        shows_reasoning: bool = True,
        keeps_one_call: bool = False,
        drops_calls: bool = False,
        is_named: bool = False,
        thoughts: ThoughtCounter | None = None,
    ) -> None:
        """With `keeps_one_call`, calls behind the first are left out; with `drops_calls`, all of them.

        `is_named` says that the request named the tool to call: as with OpenAI, an answer that does as it
        was told ends with STOP, and one that chose to call with TOOL_CALLS.
        """
        self._parser = parser
        self._shows_reasoning = shows_reasoning
        self._keeps_one_call = keeps_one_call
        self._drops_calls = drops_calls
        self._is_named = is_named
        self._num_calls = 0
        self._arguments: list[str] = []
        self._thoughts = thoughts
        self._content_scores = _ContentScores()

    @property
    def num_thought_tokens(self) -> int | None:
        """Tokens of thoughts so far, shown or not; None where nobody looks for thoughts."""
        return None if self._thoughts is None else self._thoughts.num_tokens

    def push(self, delta: ChoiceDelta) -> ChatDelta:
        """What became known with some more tokens; nothing may be added behind a stop reason."""
        if self._thoughts is not None:
            self._thoughts.push(delta.token_ids)
        piece = self._parser.push(delta.text)
        stop_reason = delta.stop_reason
        if stop_reason is not None:
            piece = joined_pieces(piece, self._parser.finish())
        if self._drops_calls:
            piece = piece._replace(tool_calls=())
        self._content_scores.add(zip(delta.places, delta.logprobs, strict=True))
        calls = piece.tool_calls
        for call in piece.tool_calls:
            if call.index >= self._num_calls:
                self._num_calls, self._arguments = call.index + 1, []
            self._arguments.append(call.arguments)
        if self._keeps_one_call:
            calls = tuple(call for call in calls if call.index == 0)
        # A client must not run a call that was cut off.
        cuts_call = stop_reason is not None and not is_whole("".join(self._arguments))
        if stop_reason is StopReason.STOP and self._num_calls and not (cuts_call or self._is_named):
            stop_reason = StopReason.TOOL_CALLS
        return ChatDelta(
            delta.index,
            piece.content,
            piece.reasoning if self._shows_reasoning else "",
            calls,
            delta.token_ids,
            stop_reason,
            delta.stop_string,
            delta.stop_token_id,
            delta.logprobs,
            delta.prompt_logprobs,
            cuts_call,
            self._content_scores.within(piece.content_spans),
        )


class _ContentScores:
    """Log probabilities of tokens of which it is not known yet whether they are content."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[TokenPlace, TokenLogprobs]] = deque()

    def add(self, scores: Iterable[tuple[TokenPlace, TokenLogprobs]]) -> None:
        """Add those of tokens with their places in the choice's text."""
        self._waiting.extend(scores)

    def within(self, spans: Sequence[Span]) -> tuple[TokenLogprobs, ...]:
        """Those of tokens with some text in these parts, which come in order; those before them are forgotten."""
        found = []
        for start, end in spans:
            while self._waiting and self._waiting[0][0].start < end:
                place, score = self._waiting.popleft()
                if max(place.start, start) < place.end:
                    found.append(score)
        return tuple(found)


def with_thoughts(usage: Usage, readers: Sequence[ChoiceReader]) -> Usage:
    """The token counts with those of all readers' thoughts, where somebody looks for them."""
    counts = [reader.num_thought_tokens for reader in readers]
    known = [count for count in counts if count is not None]
    return replace(usage, num_reasoning_tokens=sum(known)) if known else usage
