"""From logits to token ids on a device for which the host does not wait, but where it reads the tokens.

A step has one copy to the device, which holds all that is asked of the rows, and one back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from pagemesh.errors import PagemeshError
from pagemesh.kernels.dispatch import backend_for
from pagemesh.kernels.logprobs import TokenScores, make_token_scorer
from pagemesh.kernels.sampling import NOT_FINITE, NOTHING_LEFT, SamplingPlan, make_token_chooser
from pagemesh.sampling.logprobs import TOP_SIZES
from pagemesh.sampling.plan import (
    Arrays,
    Download,
    Packing,
    Part,
    SampledRow,
    Sampler,
    Samples,
    Scores,
    Transfers,
    not_finite_error,
    nothing_left_error,
    plan_arrays,
)
from pagemesh.sampling.scoring import to_logprobs


class DeviceSampler:
    """`Sampler` of a device, used with one stream of it."""

    def __init__(self, vocab_size: int, device: torch.device, transfers: Transfers) -> None:
        self._vocab_size = vocab_size
        self._transfers = transfers
        self._device = device
        self._choose = make_token_chooser(vocab_size, device)
        self._score = make_token_scorer(device)

    def launch(self, logits: torch.Tensor, rows: Sequence[SampledRow]) -> DeviceSamples:
        arrays, refused = plan_arrays(rows, self._vocab_size)
        scored = [index for index, row in enumerate(rows) if row.params.logprobs is not None]
        asked = self._upload(arrays | {"scored_rows": np.array(scored, np.int32)})
        scored_rows = asked.pop("scored_rows")
        num_top = max((rows[index].params.logprobs or 0 for index in scored), default=0)
        parts = {
            "token_ids": Part(torch.int64, (len(rows),)),
            "flags": Part(torch.int32, (len(rows),)),
        }
        packing = Packing(parts | self._score_parts(len(scored), num_top))
        memory = self._memory(packing)
        chosen = packing.views(memory)
        token_ids, flags = chosen.pop("token_ids"), chosen.pop("flags")
        self._choose(logits, SamplingPlan(**asked), token_ids, flags)
        if scored:
            self._score(logits, scored_rows, token_ids, TokenScores(**chosen))
        arriving = Arriving(self._transfers, memory, packing)
        return DeviceSamples(rows, scored, refused, token_ids, arriving)

    def score(self, logits: torch.Tensor, token_ids: Sequence[int], num_top: int) -> DeviceScores:
        arrays: Arrays = {
            "rows": np.arange(len(token_ids), dtype=np.int32),
            "token_ids": np.array(token_ids, np.int64),
        }
        asked = self._upload(arrays)
        packing = Packing(self._score_parts(len(token_ids), num_top))
        memory = self._memory(packing)
        scores = TokenScores(**packing.views(memory))
        self._score(logits, asked["rows"], asked["token_ids"], scores)
        return DeviceScores(token_ids, num_top, Arriving(self._transfers, memory, packing))

    def _upload(self, arrays: Arrays) -> dict[str, torch.Tensor]:
        tensors = self._transfers.upload(list(arrays.values()))
        return dict(zip(arrays, tensors, strict=True))

    def _memory(self, packing: Packing) -> torch.Tensor:
        # Of its own: the next step may be asked for before this one is read.
        return torch.empty(packing.num_bytes, dtype=torch.uint8, device=self._device)

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


class Arriving:
    """Results on their way to the host."""

    def __init__(self, transfers: Transfers, memory: torch.Tensor, packing: Packing) -> None:
        """Of uint8 [num_bytes], where they are packed."""
        self._packing = packing
        self._download: Download = transfers.download([memory])

    def read(self) -> dict[str, torch.Tensor]:
        """Wait for them; by name."""
        (memory,) = self._download.read()
        return self._packing.views(memory)


class DeviceSamples:
    """`PendingSamples` on their way to the host."""

    def __init__(
        self,
        rows: Sequence[SampledRow],
        scored: Sequence[int],
        refused: Mapping[str, PagemeshError],
        token_ids: torch.Tensor,
        arriving: Arriving,
    ) -> None:
        """Of rows, some of which are scored, and some of which a constraint refused."""
        self._rows = rows
        self._scored = scored
        self._refused = refused
        self._token_ids = token_ids
        self._arriving = arriving

    @property
    def token_ids(self) -> torch.Tensor:
        return self._token_ids

    def read(self) -> Samples:
        read = self._arriving.read()
        token_ids: list[int] = read.pop("token_ids").tolist()
        errors = dict(self._refused)
        for row, flag in zip(self._rows, read.pop("flags").tolist(), strict=True):
            if flag == NOT_FINITE:
                errors[row.request_id] = not_finite_error(row.request_id)
            elif flag == NOTHING_LEFT:
                errors.setdefault(row.request_id, nothing_left_error(row))
        scored = [self._rows[index] for index in self._scored]
        scores = to_logprobs(
            TokenScores(**read),
            [token_ids[index] for index in self._scored],
            [row.params.logprobs or 0 for row in scored],
        )
        names = (row.request_id for row in scored)
        return Samples(token_ids, dict(zip(names, scores, strict=True)), errors)


class DeviceScores:
    """`PendingScores` on their way to the host."""

    def __init__(self, token_ids: Sequence[int], num_top: int, arriving: Arriving) -> None:
        self._token_ids = token_ids
        self._num_top = num_top
        self._arriving = arriving

    def read(self) -> Scores:
        scores = TokenScores(**self._arriving.read())
        num_top = [self._num_top] * len(self._token_ids)
        return Scores(
            to_logprobs(scores, self._token_ids, num_top), bool(scores.norms.isfinite().all())
        )


def make_sampler(vocab_size: int, device: torch.device, transfers: Transfers) -> Sampler:
    """The host samples for the CPU, a CUDA device by itself; on the stream of the transfers."""
    match backend_for("sampling", device):
        case "cpu" | "reference":
            from pagemesh.sampling.host_sampler import HostSampler

            return HostSampler()
        case "cuda":
            from pagemesh.sampling.sampler import DeviceSampler

            return DeviceSampler(vocab_size, device, transfers)
