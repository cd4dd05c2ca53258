"""Log probabilities as OpenAI's answers have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pagemesh.sampling.logprobs import TokenLogprobs

TokenText = Callable[[int], str]
"""Text of one token id."""

_LEAST: Final = -9999.0
"""Stands for the logarithm of 0, which JSON cannot hold, as in vLLM."""


def chat_logprobs(scores: Sequence[TokenLogprobs], token_text: TokenText) -> dict[str, Any]:
    """The `logprobs` object of a chat choice, for all or some of its tokens."""
    content = []
    for score in scores:
        rivals = zip(score.top_token_ids, score.top_logprobs, strict=True)
        content.append(
            {
                **_entry(token_text(score.token_id), score.logprob),
                "top_logprobs": [_entry(token_text(each), value) for each, value in rivals],
            }
        )
    return {"content": content, "refusal": None}


def completion_logprobs(
    scores: Sequence[TokenLogprobs], token_text: TokenText, offset: int
) -> dict[str, Any]:
    """The `logprobs` object of a completion choice whose text has `offset` characters already.

    A token's own log probability is among the likeliest ones, also when it is none of them.
    """
    tokens = [token_text(score.token_id) for score in scores]
    offsets, rivals = [], []
    for score, text in zip(scores, tokens, strict=True):
        offsets.append(offset)
        offset += len(text)
        named = {text: _finite(score.logprob)}
        for token_id, logprob in zip(score.top_token_ids, score.top_logprobs, strict=True):
            # Several tokens may have the same text; the likeliest of them comes first.
            named.setdefault(token_text(token_id), _finite(logprob))
        rivals.append(named)
    return {
        "tokens": tokens,
        "token_logprobs": [_finite(score.logprob) for score in scores],
        "top_logprobs": rivals,
        "text_offset": offsets,
    }


def with_prompt(
    logprobs: dict[str, Any],
    first_token_id: int,
    scores: Sequence[TokenLogprobs],
    num_top: int,
    token_text: TokenText,
) -> dict[str, Any]:
    """The `logprobs` object of a completion choice, with the prompt's tokens in front of its own.

    `scores` are those of all prompt tokens but the first, which nothing predicts, and of each of which
    `num_top` likeliest tokens are named.
    """
    first = token_text(first_token_id)
    cut = [
        score._replace(
            top_token_ids=score.top_token_ids[:num_top], top_logprobs=score.top_logprobs[:num_top]
        )
        for score in scores
    ]
    prompt = completion_logprobs(cut, token_text, len(first))
    num_chars = len(first) + sum(map(len, prompt["tokens"]))
    return {
        "tokens": [first, *prompt["tokens"], *logprobs["tokens"]],
        "token_logprobs": [None, *prompt["token_logprobs"], *logprobs["token_logprobs"]],
        "top_logprobs": [None, *prompt["top_logprobs"], *logprobs["top_logprobs"]],
        "text_offset": [
            0,
            *prompt["text_offset"],
            *(num_chars + offset for offset in logprobs["text_offset"]),
        ],
    }


def prompt_logprobs(
    scores: Sequence[TokenLogprobs], token_text: TokenText
) -> list[dict[int, Any] | None]:
    """vLLM's `prompt_logprobs`: for each token of the prompt by id, and nothing for the first."""
    found: list[dict[int, Any] | None] = [None]
    for score in scores:
        named = {score.token_id: _named(score.logprob, score.rank, token_text(score.token_id))}
        rivals = zip(score.top_token_ids, score.top_logprobs, strict=True)
        for rank, (token_id, logprob) in enumerate(rivals, start=1):
            named.setdefault(token_id, _named(logprob, rank, token_text(token_id)))
        found.append(named)
    return found


def _named(logprob: float, rank: int, text: str) -> dict[str, Any]:
    return {"logprob": _finite(logprob), "rank": rank, "decoded_token": text}


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": _finite(logprob), "bytes": list(text.encode())}


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
