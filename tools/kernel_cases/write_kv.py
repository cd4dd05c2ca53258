"""Storing keys and values, as they are and in FP8."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from pagemesh.kernels.kv_scales import FP8, KvScales
from pagemesh.kernels.target import target_of
from pagemesh.kernels.write_kv import make_kv_writer
from tools.kernel_cases.case import Case, meta


def cases() -> Iterator[Case]:
    """A step of Llama 3 8B, whose keys and values are the tail of a fused projection."""
    writer = make_kv_writer(torch.device("meta"))
    keys_values = meta(64, 6, 8, 128)[:, 4:]
    slots = meta(64, dtype=torch.int64)
    yield Case("as they are", partial(writer.write, meta(2, 999, 16, 8, 128), keys_values, slots))
    if target_of(torch.device("meta")).capability >= 89:
        layer_kv = meta(2, 999, 16, 8, 128, dtype=FP8)
        scales = KvScales(meta(8, dtype=torch.float32), meta(8, dtype=torch.float32))
        yield Case("in FP8", partial(writer.write, layer_kv, keys_values, slots, scales))
