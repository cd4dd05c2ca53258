"""What the soak sees of the mesh's processes: memory, open files, requests that went on elsewhere."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import suppress
from typing import Any, Final, NamedTuple

import httpx
import psutil

from tests.chaos.site import ROUTERS, Site

LOOK_EVERY_S: Final = 2.0
WARM_AFTER_S: Final = 60.0
"""Of an incarnation: its memory grows before."""


class Sample(NamedTuple):
    """A process at a time."""

    age_s: float
    rss_mib: float


class Watch:
    """Looks now and then."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._samples: dict[tuple[str, int], list[Sample]] = {}
        """By name and process id: who was started again is somebody else."""
        self._files: dict[tuple[str, int], list[int]] = {}
        self._resumed: dict[tuple[str, int], float] = {}

    @property
    def num_resumed(self) -> float:
        """Requests that another worker went on with, as far as routers lived to tell."""
        return sum(self._resumed.values())

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            await asyncio.to_thread(self._look)
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), LOOK_EVERY_S)

    def quiet(self) -> None:
        """Nothing goes on: whoever has open files now has them for no request."""
        self._look()
        for name, process in self._processes().items():
            with suppress(psutil.NoSuchProcess):
                self._files.setdefault((name, process.pid), []).append(process.num_fds())

    def memory(self) -> dict[str, Any]:
        """By process: of the incarnation that lived longest, how memory and open files changed once warm."""
        found = {}
        for name in sorted({name for name, _ in self._samples}):
            key = max(
                (key for key in self._samples if key[0] == name),
                key=lambda key: self._samples[key][-1].age_s,
            )
            warm = [sample.rss_mib for sample in self._samples[key] if sample.age_s > WARM_AFTER_S]
            third = len(warm) // 3
            if not third:
                continue
            found[name] = {
                "minutes": round(self._samples[key][-1].age_s / 60, 1),
                "first_third_mib": round(statistics.median(warm[:third]), 1),
                "last_third_mib": round(statistics.median(warm[-third:]), 1),
                "most_mib": round(max(warm), 1),
                "files_when_quiet": self._files.get(key, []),
            }
        return found

    def _look(self) -> None:
        now = time.time()
        for name, process in self._processes().items():
            with suppress(psutil.NoSuchProcess):
                sample = Sample(now - process.create_time(), process.memory_info().rss / 2**20)
                self._samples.setdefault((name, process.pid), []).append(sample)
            if name in ROUTERS:
                with suppress(httpx.TransportError):
                    number = self._site.mesh.metric(name, "pagemesh:requests_resubmitted_total")
                    self._resumed[name, process.pid] = number

    def _processes(self) -> dict[str, psutil.Process]:
        """Parts and the supervisor by name; engines as "decode-0 engine"."""
        parts = self._site.mesh.parts()
        found = dict(parts) | {"supervisor": psutil.Process(self._site.mesh.process.pid)}
        for name, part in parts.items():
            with suppress(psutil.NoSuchProcess):
                for child in part.children():
                    found[f"{name} engine"] = child
        return found
