"""A GPU that the CPU plays: its tensors are the host's, its memory is counted as a test says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pagemesh.sizing.gpu_budget import GpuReading
from tests.support.host_accelerator import HostAccelerator
from tests.support.host_sharing import HostSharing

GIB = 2**30
NOTHING_TAKEN = GpuReading(8 * GIB, 0)


@dataclass
class HostGpu:
    """Gives its readings in turn, the last one again and again."""

    total_bytes: int = 8 * GIB
    readings: list[GpuReading] = field(default_factory=lambda: [NOTHING_TAKEN])
    peak_bytes: int = 0
    accelerator: HostAccelerator = field(default_factory=HostAccelerator)
    sharing: HostSharing = field(default_factory=HostSharing)
    is_alone: bool = False

    def read(self) -> GpuReading:
        assert self.is_alone, "others may come and go"
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]

    def reset_peak(self) -> None: ...

    def peak(self) -> int:
        return self.peak_bytes

    @contextmanager
    def alone(self) -> Iterator[None]:
        self.is_alone = True
        yield
        self.is_alone = False
