"""How OpenMP's threads wait, which is settled when torch is loaded. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SLEEPING_THREADS: Final[Mapping[str, str]] = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
"""Environment in which threads sleep while they wait.

They spin otherwise, and as soon as anything else runs on the machine, a step waits for a thread whose core
another one spins on: steps get 2 to 12 times slower.
"""
