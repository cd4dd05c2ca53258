"""A request as it enters an engine, and what comes out of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from pagemesh.errors import PagemeshError
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.params import SamplingParams


class FinishReason(enum.Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request as it enters the engine."""

    request_id: str
    """Unique among the requests that the engine knows."""

    prompt_token_ids: tuple[int, ...]
    """Never empty."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    """How tokens are chosen; without meaning where an embedding is asked for."""

    resume_token_ids: tuple[int, ...] = ()
    """Tokens generated elsewhere before; counted by max_tokens, not reported again."""

    priority: int = 0
    """Lower runs first; ties by arrival."""

    cache_salt: bytes = b""
    """Tenant salt of the block hashes."""

    hold_blocks: bool = False
    """Export: generate one token and keep the blocks of what is in front of it readable until `release`."""

    await_kv: bool = False
    """Import: reserve blocks and wait for `finish_import` before the request is scheduled."""

    fork_of: str | None = None
    """request_id of a request with the same prompt and salt, the leader, whose prompt KV this one shares.

    It waits while the leader computes or imports the prompt. A leader that is over, unknown or an export is
    none. Either way its tokens are those that it would have alone."""

    embed: bool = False
    """Answer with the prompt's embedding, pooled as `EngineInfo.pooling` says, instead of with tokens."""

    normalize: bool | None = None
    """Whether the embedding is scaled to a length of 1; None for what `EngineInfo.pooling` says."""


class RequestOutput(NamedTuple):
    """New tokens, or the end, of one request. A tuple, because hundreds are made in every step."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    error: PagemeshError | None = None
    """Set when finish_reason is ERROR."""
    num_cached_tokens: int = 0
    """Prefix tokens taken from the prefix cache; meaningful with the first token."""
    num_received_tokens: int = 0
    """Tokens whose KV was imported; meaningful with the first token."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each of `token_ids`; None when the request does not ask for them."""
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """With the first token of a request that asks for them: of each prompt token but the first."""
    cumulative_logprob: float | None = None
    """Sum over all tokens reported until now; None when the request does not ask for `logprobs`."""
    embedding: bytes | None = None
    """Of an `embed` request, with its end: float32, little-endian."""
