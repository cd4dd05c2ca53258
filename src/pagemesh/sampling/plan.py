"""What is sampled for, as rows and as the flat arrays of a `SamplingPlan`, and what was sampled."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.errors import InternalError, InvalidRequestError, PagemeshError
from pagemesh.sampling.logits_rules import LogitRules
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


Arrays = dict[str, npt.NDArray[np.generic]]

_WORD_BITS = 32


def plan_arrays(
    rows: Sequence[SampledRow], vocab_size: int
) -> tuple[Arrays, dict[str, PagemeshError]]:
    """The parts of a `SamplingPlan` by name; and errors by request id, of constraints that cannot go on.

    Copies what the rows refer to: their rules may change when this has returned.
    """
    params = [row.params for row in rows]
    edited = [index for index, row in enumerate(rows) if is_edited(row)]
    slots = np.full(len(rows), -1, np.int32)
    slots[edited] = np.arange(len(edited))
    top_ks = [p.top_k if 0 < p.top_k < vocab_size else 0 for p in params]
    drawn = [index for index, p in enumerate(params) if not p.greedy]
    arrays: Arrays = {
        "temperatures": np.array([p.temperature for p in params], np.float64),
        "top_ps": np.array([p.top_p for p in params], np.float64),
        "min_ps": np.array([p.min_p for p in params], np.float64),
        "seeds": np.array([p.seed for p in params], np.uint64).view(np.int64),
        "positions": np.array([row.position for row in rows], np.int64),
        "top_ks": np.array(top_ks, np.int32),
        "drawn_rows": np.array(drawn, np.int32),
        "edit_slots": slots,
    }
    arrays |= _entries([rows[index] for index in edited])
    masks, errors = _masks([rows[index] for index in edited], vocab_size)
    return arrays | masks, errors


def _entries(rows: Sequence[SampledRow]) -> Arrays:
    """Biases, penalties and forbidden tokens of rows that are edited."""
    penalties, bounds = np.zeros((len(rows), 3), np.float32), np.zeros((len(rows), 5), np.int32)
    ids: list[npt.NDArray[np.int32]] = []
    values: list[npt.NDArray[np.float32]] = []
    end = 0
    for slot, row in enumerate(rows):
        p = row.params
        penalties[slot] = p.repetition_penalty, p.frequency_penalty, p.presence_penalty
        for kind, (kind_ids, kind_values) in enumerate(_kinds(row)):
            bounds[slot, kind] = end
            ids.append(kind_ids)
            values.append(kind_values)
            end += len(kind_ids)
        bounds[slot, 4] = end
    return {
        "penalties": penalties,
        "entry_bounds": bounds,
        "entry_ids": np.concatenate(ids) if ids else np.zeros(0, np.int32),
        "entry_values": np.concatenate(values) if values else np.zeros(0, np.float32),
    }


_Kind = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]


def _kinds(row: SampledRow) -> tuple[_Kind, _Kind, _Kind, _Kind]:
    """Ids and values of biased tokens, of those seen, of those of the output, and of forbidden ones."""
    rules, params = row.rules, row.params
    biased = seen = counted = _kind(array("q"))
    if rules is not None:
        biased = _kind(rules.bias_ids, np.frombuffer(rules.biases, np.float32))
        history = rules.history
        if history is not None and params.repetition_penalty != 1.0:
            seen = _kind(history.seen_ids)
        if history is not None and (params.frequency_penalty or params.presence_penalty):
            counts = np.frombuffer(history.output_counts, np.int64)
            counted = _kind(history.output_ids, counts.astype(np.float32))
    return biased, seen, counted, _kind(array("q", forbidden_ids(row)))


def _kind(ids: array[int], values: npt.NDArray[np.float32] | None = None) -> _Kind:
    copied = np.frombuffer(ids, np.int64).astype(np.int32)
    return copied, np.zeros(len(copied), np.float32) if values is None else values


def _masks(rows: Sequence[SampledRow], vocab_size: int) -> tuple[Arrays, dict[str, PagemeshError]]:
    """A mask for each row that has a constraint or a list of allowed tokens, or both."""
    num_words = -(-vocab_size // _WORD_BITS)
    mask_rows = np.full(len(rows), -1, np.int32)
    masks: list[npt.NDArray[np.int32]] = []
    errors: dict[str, PagemeshError] = {}
    for slot, row in enumerate(rows):
        allowed = None if row.rules is None else row.rules.allowed_ids
        if row.constraint is None and allowed is None:
            continue
        mask = np.full(num_words, -1, np.int32)
        if row.constraint is not None:
            try:
                row.constraint.fill_mask(mask, row.suppressed_token_ids)
            except PagemeshError as error:
                errors[row.request_id] = error
                mask.fill(-1)
        if allowed is not None:
            mask &= _bits(allowed, num_words)
        mask_rows[slot] = len(masks)
        masks.append(mask)
    stacked = np.stack(masks) if masks else np.zeros((0, num_words), np.int32)
    return {"mask_rows": mask_rows, "masks": stacked}, errors


def _bits(ids: array[int], num_words: int) -> npt.NDArray[np.int32]:
    bits = np.zeros(num_words * _WORD_BITS, np.bool_)
    bits[np.frombuffer(ids, np.int64)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)


_ALIGNMENT: Final = 16
"""Of every part, in bytes: what the widest accesses of a device need."""


class Part(NamedTuple):
    """A tensor to be packed."""

    dtype: torch.dtype
    shape: tuple[int, ...]


class Packing:
    """Where each of several parts lies."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._places: dict[str, tuple[Part, int, int]] = {}
        self.num_bytes = 0
        """Of all of them together."""
        for name, part in parts.items():
            end = self.num_bytes + part.dtype.itemsize * prod(part.shape)
            self._places[name] = part, self.num_bytes, end
            self.num_bytes = -(-end // _ALIGNMENT) * _ALIGNMENT

    def views(self, memory: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parts within uint8 [num_bytes], by name."""
        return {
            name: memory[begin:end].view(part.dtype).view(part.shape)
            for name, (part, begin, end) in self._places.items()
        }


class Download(Protocol):
    """Tensors on their way to the host."""

    def read(self) -> list[torch.Tensor]:
        """Wait for them. Once."""
        ...


class Transfers(Protocol):
    """Copies behind what the device was asked before, on the stream that computes."""

    def upload(self, arrays: Sequence[npt.NDArray[Any]]) -> list[torch.Tensor]:
        """The arrays on the device, as they are now, by one copy."""
        ...

    def download(self, tensors: Sequence[torch.Tensor]) -> Download:
        """Have tensors copied to the host, as they are when the device gets there."""
        ...
