"""Log probabilities as OpenAI's answers have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from pagemesh.router.generation.request import ChoiceDelta
from pagemesh.sampling.logprobs import TokenLogprobs

_LEAST: Final = -9999.0
"""Stands for the logarithm of 0, which JSON cannot hold, as in vLLM."""


@dataclass(frozen=True, slots=True)
class TokenNames:
    """How tokens are written."""

    token_bytes: Callable[[int], bytes]
    """What a token adds to a text."""

    are_ids: bool = False
    """Whether they are written as `token_id:5` (vLLM's `return_tokens_as_token_ids`)."""

    def text(self, token_id: int) -> str:
        """What a token adds to a text; a part of a character is U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def chat_name(self, token_id: int) -> str:
        """In answers of conversations, where bytes stand beside it."""
        return _id_name(token_id) if self.are_ids else self.text(token_id)

    def completion_name(self, token_id: int) -> str:
        """In completions, where it is a key: parts of characters are told apart by their bytes, as by OpenAI."""
        if self.are_ids:
            return _id_name(token_id)
        data = self.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _id_name(token_id: int) -> str:
    return f"token_id:{token_id}"


class PlacedScores:
    """Log probabilities of one choice's tokens, with the places of these in its text."""

    def __init__(self) -> None:
        self._num_chars = 0
        self._waiting: list[tuple[TokenLogprobs, int]] = []

    def push(self, delta: ChoiceDelta) -> list[tuple[TokenLogprobs, int]]:
        """Those whose places became certain: a stop string may yet cut off text that is held back."""
        self._num_chars += len(delta.text)
        starts = (place.start for place in delta.places)
        self._waiting += zip(delta.logprobs, starts, strict=True)
        if delta.stop_reason is not None:
            return [(score, min(start, self._num_chars)) for score, start in self._waiting]
        ready = list(takewhile(lambda each: each[1] <= self._num_chars, self._waiting))
        del self._waiting[: len(ready)]
        return ready


def chat_logprobs(scores: Sequence[TokenLogprobs], tokens: TokenNames) -> dict[str, Any]:
    """The `logprobs` object of a chat choice, for all or some of its tokens."""
    content = []
    for score in scores:
        rivals = zip(score.top_token_ids, score.top_logprobs, strict=True)
        content.append(
            {
                **_entry(score.token_id, score.logprob, tokens),
                "top_logprobs": [_entry(each, value, tokens) for each, value in rivals],
            }
        )
    return {"content": content, "refusal": None}


def completion_logprobs(
    scores: Iterable[tuple[TokenLogprobs, int]], tokens: TokenNames
) -> dict[str, Any]:
    """The `logprobs` object of a completion choice, for all or some of its tokens with their places.

    A token's own log probability is among the likeliest ones, also when it is none of them.
    """
    placed = list(scores)
    return {
        "tokens": [tokens.completion_name(score.token_id) for score, _ in placed],
        "token_logprobs": [_finite(score.logprob) for score, _ in placed],
        "top_logprobs": [_by_name(score, tokens) for score, _ in placed],
        "text_offset": [place for _, place in placed],
    }


def _by_name(score: TokenLogprobs, tokens: TokenNames) -> dict[str, float]:
    """One entry for each token; where several have one name, all but the first are written as ids."""
    named = {tokens.completion_name(score.token_id): _finite(score.logprob)}
    for token_id, logprob in zip(score.top_token_ids, score.top_logprobs, strict=True):
        if token_id != score.token_id:
            name = tokens.completion_name(token_id)
            named[_id_name(token_id) if name in named else name] = _finite(logprob)
    return named


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """A prompt that stands in front of its answers."""

    text: str

    token_ids: Sequence[int]

    places: Sequence[int] = ()
    """For each token, the characters of the text before it, where log probabilities are asked for."""


def with_prompt(
    logprobs: dict[str, Any],
    prompt: EchoedPrompt,
    scores: Sequence[TokenLogprobs],
    num_top: int,
    tokens: TokenNames,
) -> dict[str, Any]:
    """The `logprobs` object of a completion choice, with the prompt's tokens in front of its own.

    `scores` are those of all prompt tokens but the first, which nothing predicts, and of each of which
    `num_top` likeliest tokens are named.
    """
    cut = [
        score._replace(
            top_token_ids=score.top_token_ids[:num_top], top_logprobs=score.top_logprobs[:num_top]
        )
        for score in scores
    ]
    before = completion_logprobs(zip(cut, prompt.places[1:], strict=True), tokens)
    first = tokens.completion_name(prompt.token_ids[0])
    return {
        "tokens": [first, *before["tokens"], *logprobs["tokens"]],
        "token_logprobs": [None, *before["token_logprobs"], *logprobs["token_logprobs"]],
        "top_logprobs": [None, *before["top_logprobs"], *logprobs["top_logprobs"]],
        "text_offset": [
            *prompt.places,
            *(len(prompt.text) + offset for offset in logprobs["text_offset"]),
        ],
    }


def prompt_logprobs(
    scores: Sequence[TokenLogprobs], tokens: TokenNames
) -> list[dict[int, Any] | None]:
    """vLLM's `prompt_logprobs`: for each token of the prompt by id, and nothing for the first."""
    found: list[dict[int, Any] | None] = [None]
    for score in scores:
        named = {score.token_id: _named(score.logprob, score.rank, tokens.text(score.token_id))}
        rivals = zip(score.top_token_ids, score.top_logprobs, strict=True)
        for rank, (token_id, logprob) in enumerate(rivals, start=1):
            named.setdefault(token_id, _named(logprob, rank, tokens.text(token_id)))
        found.append(named)
    return found


def _named(logprob: float, rank: int, text: str) -> dict[str, Any]:
    return {"logprob": _finite(logprob), "rank": rank, "decoded_token": text}


def _entry(token_id: int, logprob: float, tokens: TokenNames) -> dict[str, Any]:
    return {
        "token": tokens.chat_name(token_id),
        "logprob": _finite(logprob),
        "bytes": list(tokens.token_bytes(token_id)),
    }


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
