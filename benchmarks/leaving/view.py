"""What the processes of a mesh say of themselves, asked again and again until it is as it should be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from mesh import Mesh

DEADLINE_S = 3.0
_NAMES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "pagemesh:kv_blocks": "blocks",
    "pagemesh:kv_blocks_free": "free",
    "pagemesh:kv_blocks_sent_total": "sent",
    "pagemesh:requests_in_progress": "admitted",
    "pagemesh:workers": "workers",
}
_QUERY = "&".join(f"name[]={name}" for name in _NAMES)


class MissedError(Exception):
    """What was waited for did not come."""


async def when(is_so: Callable[[], Awaitable[bool]], what: str) -> float:
    """The time, by time.perf_counter(), of the first look that found it so; MissedError when none does."""
    started = time.perf_counter()
    while (asked := time.perf_counter()) < started + DEADLINE_S:
        if await is_so():
            return asked
        await asyncio.sleep(0.001)
    raise MissedError(f"{what} did not get there")


@dataclass(frozen=True)
class State:
    """Of one process, at one moment."""

    values: Mapping[str, float]

    def __getitem__(self, name: str) -> int:
        return int(self.values.get(name, 0))

    @property
    def num_requests(self) -> int:
        """That run or wait for something."""
        return self["running"] + self["waiting"]

    @property
    def num_used(self) -> int:
        """Blocks that somebody owns."""
        return self["blocks"] - self["free"]


class View:
    """Reads the metrics of a mesh's processes, those alone that are needed here."""

    def __init__(self, mesh: Mesh) -> None:
        self._ports = {
            name: int(part.flags["--metrics-port"])
            for name, part in mesh.parts().items()
            if "--metrics-port" in part.flags
        }

    async def state(self, part: str) -> State:
        """Of one process."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[part])
        try:
            writer.write(f"GET /metrics?{_QUERY} HTTP/1.0\r\n\r\n".encode())
            page = (await reader.read()).decode()
        finally:
            writer.close()
        values: dict[str, float] = {}
        for line in page.splitlines():
            name, _, number = line.rpartition(" ")
            key = _NAMES.get(name.partition("{")[0])
            if key is not None and not line.startswith("#"):
                values[key] = values.get(key, 0) + float(number)
        return State(values)

    async def when(self, part: str, holds: Callable[[State], bool]) -> float:
        """The time of the look that first saw a process like that."""

        async def is_so() -> bool:
            return holds(await self.state(part))

        return await when(is_so, part)
