"""How OpenMP's threads wait, which is settled when torch is loaded. Knows nothing of torch.

By themselves they spin for milliseconds. As soon as anything else runs on the machine, a step then waits
for a thread whose core another one spins on, and takes many times as long.
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
