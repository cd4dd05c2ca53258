"""What comes back, under vLLM's names: for every position, log probabilities are a mapping by token id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import structlog

from pagemesh.errors import PagemeshError
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.tokenizer.tokenizer import Tokenizer, token_text


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer."""

    index: int
    """Of the answer among those that are given to its prompt."""

    text: str

    token_ids: tuple[int, ...]
    """Those of a stop token or a stop string included."""

    cumulative_logprob: float | None
    """Sum of the log probabilities of `token_ids`; None unless `logprobs` or `best_of` were asked for."""

    logprobs: tuple[Position, ...] | None
    """One for each of `token_ids`; None unless they were asked for."""

    finish_reason: Literal["stop", "length", "error"]
    """A stop token or string, max_tokens or the context's end, or a failure (`RequestOutput.error`)."""

    stop_reason: int | str | None
    """The stop string, or the one of `stop_token_ids`, that ended the answer; None for anything else."""


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A prompt's embedding."""

    embedding: tuple[float, ...]
    """Its components, in float32; none when it could not be computed."""


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """The embedding of one prompt."""

    request_id: str

    prompt: str | None
    """The prompt's text; None when it was given as token ids."""

    prompt_token_ids: tuple[int, ...]

    outputs: EmbeddingOutput

    num_cached_tokens: int
    """Tokens of the prompt whose KV came from the prefix cache."""

    error: PagemeshError | None = None
    """Why there is no embedding."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The answers to one prompt."""

    request_id: str

    prompt: str | None
    """The prompt's text; None when it was given as token ids."""

    prompt_token_ids: tuple[int, ...]

    outputs: tuple[CompletionOutput, ...]
    """The `n` answers; of `best_of`, the best first."""

    num_cached_tokens: int
    """Tokens of the prompt whose KV came from the prefix cache; those of the first answer."""

    prompt_logprobs: tuple[Position | None, ...] | None = None
    """One for each token of the prompt, None for the first; None unless they were asked for."""

    error: PagemeshError | None = None
    """Why an answer could not be completed; what was generated before is in `outputs`."""


class Logprob(NamedTuple):
    """What the model thought of one token at one position."""

    logprob: float
    """Natural log probability."""

    rank: int
    """1 is the likeliest token."""

    decoded_token: str
    """The token's own text; special tokens have theirs."""


Position = dict[int, Logprob]
"""By token id: the token that stands there, and as many of the likeliest ones as were asked for."""


def read_logprobs(positions: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> tuple[Position, ...]:
    """What the engine reported, with the tokens' texts."""
    return tuple(_read(position, tokenizer) for position in positions)


def _read(position: TokenLogprobs, tokenizer: Tokenizer) -> Position:
    found = {position.token_id: (position.logprob, position.rank)}
    top = zip(position.top_token_ids, position.top_logprobs, strict=True)
    for rank, (token_id, logprob) in enumerate(top, start=1):
        found.setdefault(token_id, (logprob, rank))
    return {
        token_id: Logprob(logprob, rank, token_text(tokenizer, token_id))
        for token_id, (logprob, rank) in found.items()
    }


log = structlog.get_logger(__name__)

Output = TypeVar("Output", RequestOutput, EmbeddingRequestOutput)


def without_failures(outputs: list[Output]) -> list[Output]:
    """The outputs, with a word about those that failed; raises when there are no others."""
    failed = [output for output in outputs if output.error is not None]
    for output in failed:
        log.warning("request failed", request_id=output.request_id, error=str(output.error))
    if failed and len(failed) == len(outputs):
        assert failed[0].error is not None
        raise failed[0].error
    return outputs
