"""What is sampled for, as rows and as the flat arrays of a `SamplingPlan`, and what was sampled.

Arrays go to the device by one copy, and what it chose comes back by one.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count
from math import prod
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.errors import InternalError, InvalidRequestError, PagemeshError
from pagemesh.sampling.logits_rules import LogitRules
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.structured.constraint import TokenConstraint
from pagemesh.sampling.structured.outputs import PARAM as STRUCTURED_OUTPUTS

Arrays = dict[str, npt.NDArray[np.generic]]

_WORD_BITS: Final = 32
"""Of a mask."""

_ALIGNMENT: Final = 16
"""Of every tensor that shares memory with others, in bytes: what the widest accesses of a device need."""


class SampledRow(NamedTuple):
    """What one row of logits is sampled for. A tuple, because hundreds are made in every step."""

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


def needs_plan(rows: Sequence[SampledRow]) -> bool:
    """Whether any row takes another token than its likeliest."""
    return any(not row.params.greedy or is_edited(row) for row in rows)


def plan_arrays(
    rows: Sequence[SampledRow], vocab_size: int
) -> tuple[Arrays, dict[str, PagemeshError]]:
    """The parts of a `SamplingPlan` by name; and errors by request id, of constraints that cannot go on.

    Copies what the rows refer to: their rules may change when this has returned.
    """
    params = [row.params for row in rows]
    edited = [row for row in rows if is_edited(row)]
    numbers = count()
    slots = [next(numbers) if is_edited(row) else -1 for row in rows]
    top_ks = [p.top_k if 0 < p.top_k < vocab_size else 0 for p in params]
    drawn = [index for index, p in enumerate(params) if not p.greedy]
    shares = [p.temperature for p in params], [p.top_p for p in params], [p.min_p for p in params]
    temperatures, top_ps, min_ps = np.array(shares, np.float64)
    counters = [p.seed for p in params], [row.position for row in rows]
    seeds, positions = np.array(counters, np.uint64).view(np.int64)
    kept, edit_slots = np.array((top_ks, slots), np.int32)
    arrays: Arrays = {
        "temperatures": temperatures,
        "top_ps": top_ps,
        "min_ps": min_ps,
        "seeds": seeds,
        "positions": positions,
        "top_ks": kept,
        "drawn_rows": np.array(drawn, np.int32),
        "edit_slots": edit_slots,
    }
    if not edited:
        return arrays | _no_edits(vocab_size), {}
    masks, errors = _masks(edited, vocab_size)
    return arrays | _entries(edited) | masks, errors


@lru_cache(maxsize=8)
def _no_edits(vocab_size: int) -> Arrays:
    """Of a batch of which no row is edited."""
    return {
        "penalties": np.zeros((0, 3), np.float32),
        "entry_bounds": np.zeros((0, 5), np.int32),
        "entry_ids": np.zeros(0, np.int32),
        "entry_values": np.zeros(0, np.float32),
        "mask_rows": np.zeros(0, np.int32),
        "masks": np.zeros((0, -(-vocab_size // _WORD_BITS)), np.int32),
    }


def _entries(rows: Sequence[SampledRow]) -> Arrays:
    """Biases, penalties and forbidden tokens of rows that are edited."""
    bounds: list[int] = []
    ids: list[array[int]] = []
    valued: list[tuple[int, array[int] | array[float]]] = []
    end = 0
    for row in rows:
        for kind_ids, values in _kinds(row):
            bounds.append(end)
            if kind_ids:
                ids.append(kind_ids)
                if values is not None:
                    valued.append((end, values))
                end += len(kind_ids)
        bounds.append(end)
    entry_values = np.zeros(end, np.float32)
    for begin, values in valued:
        entry_values[begin : begin + len(values)] = values
    params = [row.params for row in rows]
    penalties = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in params]
    return {
        "penalties": np.array(penalties, np.float32),
        "entry_bounds": np.array(bounds, np.int32).reshape(-1, 5),
        "entry_ids": np.frombuffer(b"".join(ids), np.int64).astype(np.int32),
        "entry_values": entry_values,
    }


_Kind: TypeAlias = "tuple[array[int], array[int] | array[float] | None]"
_NOTHING: Final[_Kind] = array("q"), None


def _kinds(row: SampledRow) -> tuple[_Kind, _Kind, _Kind, _Kind]:
    """Ids and values of biased tokens, of those seen, of those of the output, and of forbidden ones."""
    rules, params = row.rules, row.params
    biased = seen = counted = _NOTHING
    if rules is not None:
        biased = rules.bias_ids, rules.biases
        history = rules.history
        if history is not None and params.repetition_penalty != 1.0:
            seen = history.seen_ids, None
        if history is not None and (params.frequency_penalty or params.presence_penalty):
            counted = history.output_ids, history.output_counts
    forbidden = forbidden_ids(row)
    return biased, seen, counted, (array("q", forbidden), None) if forbidden else _NOTHING


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
    stacked = np.array(masks, np.int32).reshape(-1, num_words)
    return {"mask_rows": mask_rows, "masks": stacked}, errors


def _bits(ids: array[int], num_words: int) -> npt.NDArray[np.int32]:
    bits = np.zeros(num_words * _WORD_BITS, np.bool_)
    bits[np.frombuffer(ids, np.int64)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)


class ArrivingTensors(Protocol):
    """Tensors on their way to the host."""

    def read(self) -> Sequence[torch.Tensor]:
        """Wait for them. Once."""
        ...


class SamplingTransfers(Protocol):
    """Copies behind what the device was asked before, on the stream that computes."""

    def upload(self, arrays: Sequence[npt.NDArray[Any]]) -> list[torch.Tensor]:
        """The arrays on the device, as they are now, by one copy."""
        ...

    def download(self, tensors: Sequence[torch.Tensor]) -> ArrivingTensors:
        """Have tensors copied to the host, as they are when the device gets there."""
        ...


class LocalTensors(NamedTuple):
    """`ArrivingTensors` that are on the host already."""

    tensors: Sequence[torch.Tensor]

    def read(self) -> Sequence[torch.Tensor]:
        return self.tensors


class LocalTransfers:
    """`SamplingTransfers` of the CPU, which copy nothing."""

    def upload(self, arrays: Sequence[npt.NDArray[Any]]) -> list[torch.Tensor]:
        return [torch.from_numpy(array) for array in arrays]

    def download(self, tensors: Sequence[torch.Tensor]) -> LocalTensors:
        return LocalTensors(tensors)


class Part(NamedTuple):
    """A tensor of `Results`."""

    dtype: torch.dtype
    shape: tuple[int, ...]


class Results:
    """Tensors that a device writes and the host reads: in one piece of memory, which one copy brings, where they are
    copied."""

    def __init__(
        self, parts: Mapping[str, Part], device: torch.device, transfers: SamplingTransfers
    ) -> None:
        self._transfers = transfers
        self._places: _Places | None = None
        if isinstance(transfers, LocalTransfers):
            self.tensors = {
                name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in parts.items()
            }
            """On the device, by name."""
            self._sent = [*self.tensors.values()]
        else:
            self._places, num_bytes = _places(parts)
            # Of its own: the next step may be asked for before this one is read.
            memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
            self.tensors = _views(memory, self._places)
            self._sent = [memory]
        self._arriving: ArrivingTensors | None = None

    def send(self) -> None:
        """Have them copied to the host, as they are when the device gets there. Once."""
        self._arriving = self._transfers.download(self._sent)

    def read(self) -> dict[str, torch.Tensor]:
        """Wait for them; by name. Once."""
        assert self._arriving is not None, "they were not sent"
        arrived = self._arriving.read()
        if self._places is None:
            return dict(zip(self.tensors, arrived, strict=True))
        return _views(arrived[0], self._places)


_Places = dict[str, tuple[Part, int, int]]


def _places(parts: Mapping[str, Part]) -> tuple[_Places, int]:
    """Where the parts begin and end in memory that they share, and how many bytes that has."""
    places: _Places = {}
    begin = 0
    for name, part in parts.items():
        end = begin + part.dtype.itemsize * prod(part.shape)
        places[name] = part, begin, end
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
    return places, begin


def _views(memory: torch.Tensor, places: _Places) -> dict[str, torch.Tensor]:
    return {
        name: memory[begin:end].view(part.dtype).view(part.shape)
        for name, (part, begin, end) in places.items()
    }
