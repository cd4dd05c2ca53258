"""Rows to sample, and what a sampler makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.engine.accelerator import Accelerator
from pagemesh.engine.cuda.accelerator import CudaAccelerator
from pagemesh.engine.cuda.transfers import Transfers
from pagemesh.errors import InvalidRequestError
from pagemesh.kernels.dispatch import backend_for
from pagemesh.kernels.sampling import SamplingPlan
from pagemesh.kernels.sampling.cpu import apply_edits
from pagemesh.sampling.logits_rules import make_logit_rules
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.plan import (
    LocalTransfers,
    SampledRow,
    Samples,
    is_edited,
    plan_arrays,
)
from pagemesh.sampling.sampler import Sampler
from tests.support.host_accelerator import HostAccelerator

CPU = torch.device("cpu")


@dataclass
class Allow:
    """Allows what it was told; avoids as told by whoever asks."""

    token_ids: set[int]
    avoided: list[tuple[int, ...]] = field(default_factory=list)

    is_over = False

    def allows(self, token_id: int) -> bool:
        return token_id in self.token_ids

    def accept(self, token_id: int) -> bool:
        return self.allows(token_id)

    def fill_mask(self, mask: npt.NDArray[np.int32], avoid: Sequence[int] = ()) -> None:
        self.avoided.append(tuple(avoid))
        bits = np.zeros(mask.size * 32, dtype=np.bool_)
        bits[list(self.token_ids - set(avoid) or self.token_ids)] = True
        mask[:] = np.packbits(bits, bitorder="little").view(np.int32)


class Refuse(Allow):
    """Cannot go on."""

    def fill_mask(self, mask: npt.NDArray[np.int32], avoid: Sequence[int] = ()) -> None:
        raise InvalidRequestError("too complex", param="structured_outputs")


def make_row(position: int = 0, suppressed: tuple[int, ...] = (), **params: Any) -> SampledRow:
    return SampledRow(f"r{position}", SamplingParams(**params), position, suppressed)


def make_ruled_row(
    position: int, output: Sequence[int], suppressed: tuple[int, ...] = (), **params: Any
) -> SampledRow:
    row = make_row(position, suppressed, **params)
    return row._replace(rules=make_logit_rules(row.params, [0, 1], output))


def mixed_rows(num_rows: int) -> list[SampledRow]:
    """Rows of all kinds, with and without rules."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.0, "repetition_penalty": 1.7, "logprobs": 3},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"min_p": 0.2, "logit_bias": {3: 5.0, 7: -100.0}, "logprobs": 0},
        {"bad_words_token_ids": ((2, 5), (8,)), "top_k": 20},
        {"allowed_token_ids": (1, 4, 6, 9), "logprobs": 20, "top_p": 0.8},
        {},
    ]
    return [
        make_ruled_row(i, [5, 2] * (i % 3), (i % 11,) if i % 4 else (), seed=4, **kinds[i % 7])
        for i in range(num_rows)
    ]


def fewer(device: torch.device, number: int) -> int:
    """As many rows, or a sixth where Triton's sampler is tested: its interpreter is slow."""
    return number // 6 if backend_for("sampling", device) == "cuda" else number


def accelerator_of(device: torch.device) -> Accelerator:
    return CudaAccelerator(device) if device.type == "cuda" else HostAccelerator()


def sampler_on(accelerator: Accelerator, vocab_size: int) -> Sampler:
    if backend_for("sampling", accelerator.device) == "cpu":
        return Sampler(vocab_size, accelerator.device)
    return Sampler(vocab_size, accelerator.device, Transfers(accelerator, timeout=60.0))


def sample_on(device: torch.device, logits: torch.Tensor, rows: Sequence[SampledRow]) -> Samples:
    """What the device's sampler chooses."""
    accelerator = accelerator_of(device)
    with accelerator.computing():
        sampler = sampler_on(accelerator, logits.shape[1])
        return sampler.launch(logits.to(device, copy=True), rows).read()


def ids_on(device: torch.device, logits: torch.Tensor, rows: Sequence[SampledRow]) -> list[int]:
    """The tokens that the device's sampler chooses, all of them without an error."""
    samples = sample_on(device, logits, rows)
    assert samples.errors == {}
    return samples.token_ids


def edited_on_cpu(logits: torch.Tensor, rows: Sequence[SampledRow]) -> torch.Tensor:
    """The logits, float32 [R, vocab], as the CPU edits them."""
    arrays, errors = plan_arrays(rows, logits.shape[1])
    assert errors == {}
    tensors = LocalTransfers().upload(list(arrays.values()))
    indices = [index for index, row in enumerate(rows) if is_edited(row)]
    edited = logits[indices]
    apply_edits(edited, SamplingPlan(**dict(zip(arrays, tensors, strict=True))))
    whole = logits.clone()
    whole[indices] = edited
    return whole
