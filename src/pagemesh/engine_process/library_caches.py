"""How much oneDNN and its wrapper in torch remember, which is settled when torch is loaded. Knows nothing of torch.

Both keep what they made for each shape of a matrix product, 1,024 of them by default, with its code and scratch
memory of up to half a MiB. Continuous batching has a new shape for nearly every number of tokens in a step, of which
most never come back: 800 of them took some 380 MiB, and take less than 30 with a quarter of that
(tests/unit/engine_process/test_library_caches.py). Those of small batches, which come again and again, fit in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BOUNDED_CACHES: Final[Mapping[str, str]] = {
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    "LRU_CACHE_CAPACITY": "256",
}
"""Environment of a process that computes on CPUs."""
