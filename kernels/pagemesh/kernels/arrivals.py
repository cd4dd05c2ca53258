"""Counters of programs that have arrived, for kernels whose last program adds up what all of them left.

A stream's kernels follow each other, so one array serves all of them. Kernels of two streams may overlap,
even kernels of one weight: each stream has its own array.
"""

from __future__ import annotations

from typing import Final

import torch

NUM_COUNTERS: Final = 1024
"""Most programs of one kernel, or groups of them, that count arrivals."""

_of_streams: dict[tuple[torch.device, int], torch.Tensor] = {}


def arrival_counters(device: torch.device) -> torch.Tensor:
    """The counters of the current stream, int32 [NUM_COUNTERS]: zeros whenever none of its kernels runs.

    A kernel that uses them leaves zeros again. A graph that is captured on a stream without any has
    counters of its own in it, which it sets to zero itself.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    counters = _of_streams.get((device, stream))
    if counters is None:
        counters = torch.zeros(NUM_COUNTERS, dtype=torch.int32, device=device)
        # What is recorded into a graph is not zero before the graph runs.
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            _of_streams[device, stream] = counters
    return counters
