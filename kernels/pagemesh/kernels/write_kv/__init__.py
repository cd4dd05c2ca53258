"""Turns the queries and keys of a step's tokens, and stores keys and values in their block slots.

Both at once, since they read the same heads. `make_kv_writer` chooses the implementation once; all pass
the same tests.
"""

from __future__ import annotations

import torch

from pagemesh.kernels.dispatch import backend_for
from pagemesh.kernels.write_kv.cpu import CpuKvWriter
from pagemesh.kernels.write_kv.interface import KvWriter, ReferenceKvWriter, Turn

__all__ = ["KvWriter", "Turn", "make_kv_writer"]


def make_kv_writer(device: torch.device) -> KvWriter:
    """The implementation for a device; ValueError when there is none."""
    match backend_for("write_kv", device):
        case "cpu":
            return CpuKvWriter()
        case "cuda":
            from pagemesh.kernels.write_kv.cuda import CudaKvWriter

            return CudaKvWriter()
        case "reference":
            return ReferenceKvWriter()
