"""What must be in the environment before torch is loaded: how threads wait, and how much oneDNN keeps. No torch.

OpenMP's threads spin for milliseconds by themselves. As soon as anything else runs on the machine, a step then
waits for a thread whose core another one spins on, and takes many times as long.

oneDNN and its wrapper in torch keep what they made for each shape of a matrix product, 1,024 of them by default,
with its code and scratch memory of up to half a MiB. Continuous batching has a new shape for nearly every number of
tokens in a step, of which most never come back: 800 of them took some 380 MiB, and take less than 30 with a quarter
of that (tests/unit/engine_process/test_engine_environment.py). Those of small batches, which come again and again, fit in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SLEEPING_THREADS: Final[Mapping[str, str]] = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
"""Environment of workers, of which a machine has several: threads sleep while they wait."""

SPINNING_BRIEFLY: Final[Mapping[str, str]] = {"GOMP_SPINCOUNT": "1500", "KMP_BLOCKTIME": "0"}
"""Environment of a process that mostly has its cores to itself: threads spin for some tens of microseconds.

That is as long as the step's work on one thread between two kernels, so that nobody has to be woken.
"""


BOUNDED_CACHES: Final[Mapping[str, str]] = {
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    "LRU_CACHE_CAPACITY": "256",
}
"""Environment of a process that computes on CPUs."""
