"""From logits to token ids: makes the plan of a batch, has it carried out on the logits' device, and scores tokens.

On a device for which the host does not wait, a step has one copy to the device, which holds all that is asked of
the rows, and one back; the host waits where it reads the tokens. On a CPU nothing is copied.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from pagemesh.errors import PagemeshError
from pagemesh.kernels.arg_max import ArgMax
from pagemesh.kernels.logprobs import TokenScores, make_token_scorer
from pagemesh.kernels.sampling import NOT_FINITE, NOTHING_LEFT, SamplingPlan, make_token_chooser
from pagemesh.sampling.logprobs import TOP_SIZES, TokenLogprobs
from pagemesh.sampling.plan import (
    Arrays,
    LocalTransfers,
    Part,
    Results,
    SampledRow,
    Samples,
    SamplingTransfers,
    Scores,
    needs_plan,
    not_finite_error,
    nothing_left_error,
    plan_arrays,
)


class Sampler:
    """Chooses tokens for one vocabulary on one device, used with one stream of it."""

    def __init__(
        self, vocab_size: int, device: torch.device, transfers: SamplingTransfers | None = None
    ) -> None:
        """A CPU needs no transfers."""
        self._vocab_size = vocab_size
        self._device = device
        self._transfers = transfers or LocalTransfers()
        self._choose = make_token_chooser(vocab_size, device)
        self._score = make_token_scorer(device)
        self._arg_max = ArgMax()

    def launch(self, logits: torch.Tensor, rows: Sequence[SampledRow]) -> PendingSamples:
        """Choose one token for each row of logits [R, vocab], which stay as they are; does not wait.

        In vLLM's order (v1/sample/sampler.py): log probabilities of the logits as they are, then biases,
        penalties and what is forbidden, then temperature, top-k, min-p and top-p. Every row's result
        depends on that row alone: its logits, its parameters and its (seed, position).
        """
        scored = [index for index, row in enumerate(rows) if row.params.logprobs is not None]
        is_planned = needs_plan(rows)
        if not scored and not is_planned and isinstance(self._transfers, LocalTransfers):
            return self._likeliest(logits, rows)
        arrays: Arrays = {}
        refused: Mapping[str, PagemeshError] = {}
        if is_planned:
            arrays, refused = plan_arrays(rows, self._vocab_size)
        num_top = max((rows[index].params.logprobs or 0 for index in scored), default=0)
        if scored:
            arrays["scored_rows"] = np.array(scored, np.int32)
        asked = self._upload(arrays) if arrays else {}
        scored_rows = asked.pop("scored_rows", None)
        parts = {
            "token_ids": Part(torch.int64, (len(rows),)),
            "flags": Part(torch.int32, (len(rows),)),
        }
        if scored:
            parts |= self._score_parts(len(scored), num_top)
        results = Results(parts, self._device, self._transfers)
        chosen = dict(results.tensors)
        token_ids, flags = chosen.pop("token_ids"), chosen.pop("flags")
        self._choose(logits, SamplingPlan(**asked) if asked else None, token_ids, flags)
        if scored_rows is not None:
            self._score(logits, scored_rows, token_ids, TokenScores(**chosen))
        results.send()
        return PendingSamples(rows, scored, refused, token_ids, results.read)

    def score(self, logits: torch.Tensor, token_ids: Sequence[int], num_top: int) -> PendingScores:
        """Log probabilities of one token for each row of logits [R, vocab]; does not wait."""
        arrays: Arrays = {
            "rows": np.arange(len(token_ids), dtype=np.int32),
            "token_ids": np.array(token_ids, np.int64),
        }
        asked = self._upload(arrays)
        parts = self._score_parts(len(token_ids), num_top)
        results = Results(parts, self._device, self._transfers)
        self._score(logits, asked["rows"], asked["token_ids"], TokenScores(**results.tensors))
        results.send()
        return PendingScores(token_ids, num_top, results)

    def _likeliest(self, logits: torch.Tensor, rows: Sequence[SampledRow]) -> PendingSamples:
        """On a CPU, without a plan or scores: the arg-max, and next to nothing beside it. Recorded decodes leave their
        logits in one tensor."""
        best, token_ids = self._arg_max(logits)
        # NaN for a row that has one.
        flags = [0 if math.isfinite(value) else NOT_FINITE for value in best.tolist()]
        read = {"token_ids": token_ids, "flags": array("i", flags)}
        return PendingSamples(rows, (), {}, token_ids, lambda: read)

    def _upload(self, arrays: Arrays) -> dict[str, torch.Tensor]:
        tensors = self._transfers.upload(list(arrays.values()))
        return dict(zip(arrays, tensors, strict=True))

    def _score_parts(self, num_rows: int, num_top: int) -> dict[str, Part]:
        num_top = min(size for size in TOP_SIZES if size >= num_top)
        num_top = min(num_top, self._vocab_size)
        return {
            "norms": Part(torch.float32, (num_rows,)),
            "logprobs": Part(torch.float32, (num_rows,)),
            "ranks": Part(torch.int32, (num_rows,)),
            "top_ids": Part(torch.int32, (num_rows, num_top)),
            "top_logprobs": Part(torch.float32, (num_rows, num_top)),
        }


class PendingSamples:
    """Tokens that a device was told to choose."""

    def __init__(
        self,
        rows: Sequence[SampledRow],
        scored: Sequence[int],
        refused: Mapping[str, PagemeshError],
        token_ids: torch.Tensor,
        read: Callable[[], dict[str, Any]],
    ) -> None:
        """Of rows, some of which are scored, and some of which a constraint refused; `read` waits for results."""
        self._rows = rows
        self._scored = scored
        self._refused = refused
        self._read = read
        self.token_ids = token_ids
        """One id per row, int64 [R], on the logits' device: what comes next on it may use them already.

        Those of rows that fail are ids of the vocabulary, but without meaning.
        """

    def read(self) -> Samples:
        """Wait for the device, and bring what it chose to the host. Once."""
        read = self._read()
        token_ids: list[int] = read.pop("token_ids").tolist()
        errors = dict(self._refused)
        flags: list[int] = read.pop("flags").tolist()
        if any(flags):
            for row, flag in zip(self._rows, flags, strict=True):
                if flag == NOT_FINITE:
                    errors[row.request_id] = not_finite_error(row.request_id)
                elif flag == NOTHING_LEFT:
                    errors.setdefault(row.request_id, nothing_left_error(row))
        if not self._scored:
            return Samples(token_ids, {}, errors)
        scored = [self._rows[index] for index in self._scored]
        scores = _to_logprobs(
            TokenScores(**read),
            [token_ids[index] for index in self._scored],
            [row.params.logprobs or 0 for row in scored],
        )
        names = (row.request_id for row in scored)
        return Samples(token_ids, dict(zip(names, scores, strict=True)), errors)


class PendingScores:
    """Tokens that a device was told to score."""

    def __init__(self, token_ids: Sequence[int], num_top: int, results: Results) -> None:
        self._token_ids = token_ids
        self._num_top = num_top
        self._results = results

    def read(self) -> Scores:
        """Wait for the device, and bring the scores to the host. Once."""
        scores = TokenScores(**self._results.read())
        num_top = [self._num_top] * len(self._token_ids)
        return Scores(
            _to_logprobs(scores, self._token_ids, num_top), bool(scores.norms.isfinite().all())
        )


def _to_logprobs(
    scores: TokenScores, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """Scores of the tokens, which the host can read, with as many of the likeliest as asked for."""
    return [
        TokenLogprobs(token_id, logprob, rank, tuple(ids[:count]), tuple(values[:count]))
        for token_id, logprob, rank, ids, values, count in zip(
            token_ids,
            scores.logprobs.tolist(),
            scores.ranks.tolist(),
            scores.top_ids.tolist(),
            scores.top_logprobs.tolist(),
            num_top,
            strict=True,
        )
    ]
