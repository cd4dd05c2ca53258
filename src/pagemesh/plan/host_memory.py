"""What a worker on a GPU takes of its host's memory: docs/memory.md says how a model gets to the GPU."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from pagemesh.sizing.plan import GIB

ALLOWANCE_GIB: Final = 8
"""Of a worker beside its model: two processes with torch, CUDA's libraries, kernels as they are compiled, 72 MiB
of buffers for weights and KV, and requests and KV on their way. An allowance, not a measurement: on a CPU both
processes take half a GiB (memory.json)."""


class HostMemory(NamedTuple):
    """Of one worker, in whole GiB."""

    request: int
    """What it holds at some time, and nobody can take from it."""
    limit: int
    """With the model's files, which count as the worker's as long as the system keeps them."""


def host_memory(model_bytes: int, *, held_first: bool) -> HostMemory:
    """`held_first` is a model that the host holds as a whole before the GPU gets it.

    The others' files pass through; the system drops what it kept of them when memory is wanted.
    """
    model = math.ceil(model_bytes / GIB)
    limit = ALLOWANCE_GIB + model
    return HostMemory(limit if held_first else ALLOWANCE_GIB, limit)
