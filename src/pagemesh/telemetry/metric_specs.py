"""How a metric is declared, and the buckets of histograms, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Of these three vLLM's, so that quantiles read off both systems are alike.
TTFT_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BUCKETS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip

EXPOSED_BUCKETS: Final = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
LOOKUP_BUCKETS: Final = (
    0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CounterSpec:
    """Declares a counter."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GaugeSpec:
    """Declares a gauge."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HistogramSpec:
    """Declares a histogram; buckets in the unit of the name."""

    name: str
    help: str
    buckets: tuple[float, ...]
    labels: tuple[str, ...] = ()
