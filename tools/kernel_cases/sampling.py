"""Choosing tokens of decodes, for vocabularies of Llama 2, Llama 3 and Gemma."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from pagemesh.kernels.sampling import SamplingPlan
from pagemesh.kernels.sampling.cuda import CudaTokenChooser
from tools.kernel_cases.case import Case, meta


def cases() -> Iterator[Case]:
    """Rows of logits as the heads give them; a batch may have all kinds of rows."""
    for vocab_size in (32_000, 128_256, 262_144):
        choose = CudaTokenChooser(vocab_size, torch.device("meta"))
        for dtype in (torch.bfloat16, torch.float32):
            logits = meta(8, vocab_size, dtype=dtype)
            results = meta(8, dtype=torch.int64), meta(8, dtype=torch.int32)
            name = f"of {vocab_size} in {str(dtype).removeprefix('torch.')}"
            yield Case(name, partial(choose, logits, _plan(8, vocab_size), *results))


def _plan(num_rows: int, vocab_size: int) -> SamplingPlan:
    numbers = partial(meta, num_rows)
    return SamplingPlan(
        temperatures=numbers(dtype=torch.float64),
        top_ps=numbers(dtype=torch.float64),
        min_ps=numbers(dtype=torch.float64),
        seeds=numbers(dtype=torch.int64),
        positions=numbers(dtype=torch.int64),
        top_ks=numbers(dtype=torch.int32),
        drawn_rows=numbers(dtype=torch.int32),
        edit_slots=numbers(dtype=torch.int32),
        penalties=numbers(3, dtype=torch.float32),
        entry_bounds=numbers(5, dtype=torch.int32),
        entry_ids=meta(64, dtype=torch.int32),
        entry_values=meta(64, dtype=torch.float32),
        mask_rows=numbers(dtype=torch.int32),
        masks=numbers(-(-vocab_size // 32), dtype=torch.int32),
    )
