"""What comes back, under vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pagemesh.errors import PagemeshError
from pagemesh.llm.logprobs import Position


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
