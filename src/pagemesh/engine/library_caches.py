"""How much oneDNN and its wrapper in torch remember, which is settled when torch is loaded. Knows nothing of torch.

Both keep what they made for each shape of a matrix product, 1,024 of them by default, each with its code and
scratch memory of some 100 KiB. Continuous batching has a new shape for nearly every number of tokens in a step, of
which most never come back: an engine grew by 200 MiB within ten minutes so, and on. Those of small batches, that come
again and again, fit into a quarter of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BOUNDED_CACHES: Final[Mapping[str, str]] = {
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    "LRU_CACHE_CAPACITY": "256",
}
"""Environment of a process that computes on CPUs."""
