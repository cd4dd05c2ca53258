"""What is sampled for, what was sampled, and who does it: on the host, or on a device that it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from pagemesh.errors import InternalError, InvalidRequestError, PagemeshError
from pagemesh.sampling.logit_rules import LogitRules
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.structured.constraint import TokenConstraint
from pagemesh.sampling.structured.outputs import PARAM as STRUCTURED_OUTPUTS


@dataclass(frozen=True, slots=True)
class SampledRow:
    """What one row of logits is sampled for."""

    request_id: str
    params: SamplingParams
    position: int
    """Index of the new token in the whole sequence, prompt included."""
    suppressed_token_ids: Sequence[int] = ()
    """Tokens that must not be chosen."""
    rules: LogitRules | None = None
    """What else changes the logits, if anything does."""
    constraint: TokenConstraint | None = None
    """What may be chosen at all; the suppressed tokens may then be chosen where nothing else may."""


class Samples(NamedTuple):
    """What was sampled."""

    token_ids: list[int]
    """One per row; without meaning for the requests in `errors`."""

    logprobs: dict[str, TokenLogprobs]
    """By request id, for the rows that ask for them."""

    errors: dict[str, PagemeshError]
    """By request id: rows from which nothing can be sampled."""


class Scores(NamedTuple):
    """What a model thought of tokens that were there."""

    logprobs: list[TokenLogprobs]
    """One for each."""

    are_finite: bool
    """Whether all logits were; if not, the log probabilities have no meaning."""


class PendingSamples(Protocol):
    """Tokens that a device was told to choose."""

    @property
    def token_ids(self) -> torch.Tensor:
        """One id per row, int64 [R], on the logits' device: what comes next on it may use them already.

        Those of rows that fail are ids of the vocabulary, but without meaning.
        """
        ...

    def read(self) -> Samples:
        """Wait for the device, and bring what it chose to the host. Once."""
        ...


class PendingScores(Protocol):
    """Tokens that a device was told to score."""

    def read(self) -> Scores:
        """Wait for the device, and bring the scores to the host. Once."""
        ...


class Sampler(Protocol):
    """Chooses tokens for one vocabulary on one device."""

    def launch(self, logits: torch.Tensor, rows: Sequence[SampledRow]) -> PendingSamples:
        """Choose one token for each row of logits [R, vocab], which may be overwritten; does not wait.

        In vLLM's order (v1/sample/sampler.py): log probabilities of the logits as they are, then biases,
        penalties and what is forbidden, then temperature, top-k, min-p and top-p. Every row's result
        depends on that row alone: its logits, its parameters and its (seed, position).
        """
        ...

    def score(self, logits: torch.Tensor, token_ids: Sequence[int], num_top: int) -> PendingScores:
        """Log probabilities of one token for each row of logits [R, vocab]; does not wait."""
        ...


def not_finite_error(request_id: str) -> PagemeshError:
    """Of a row of logits that are not finite."""
    return InternalError(
        f"the model gave logits that are not finite for {request_id}", reason="LOGITS_NOT_FINITE"
    )


def nothing_left_error(row: SampledRow) -> PagemeshError:
    """Of a row that its edits leave no token: what the request asks for excludes each other."""
    params = row.params
    given = {
        STRUCTURED_OUTPUTS: row.constraint is not None,
        "allowed_token_ids": params.allowed_token_ids is not None,
        "bad_words": bool(params.bad_words_token_ids),
        "min_tokens": len(row.suppressed_token_ids) > 0,
        "logit_bias": bool(params.logit_bias),
    }
    names = [name for name, is_given in given.items() if is_given]
    return InvalidRequestError(
        f"together, {', '.join(names)} leave no token that may come next",
        reason="NO_TOKEN_ALLOWED",
        param=names[0] if names else None,
    )


def forbidden_ids(row: SampledRow) -> Sequence[int]:
    """Tokens that must not be chosen now, whatever the row's constraint says."""
    suppressed = row.suppressed_token_ids if row.constraint is None else ()
    if row.rules is None or row.rules.bad_words is None:
        return suppressed
    return (*suppressed, *row.rules.bad_words.forbidden_ids)


def is_edited(row: SampledRow) -> bool:
    """Whether anything changes the row's logits."""
    return row.rules is not None or row.constraint is not None or len(row.suppressed_token_ids) > 0
