"""An engine's process whose KV the worker cannot map: `python -m tests.support.staged_engine …`.

With STAGING_HANGS in the environment, copies never end, and those between devices fail.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace

from pagemesh.engine.engine import EngineCore
from pagemesh.engine_process.pipe import EngineSettings
from pagemesh.engine_process.server import main
from pagemesh.kv_memory.staged import DeviceMemoryName, Piece, StagedKv


class HangingStager:
    """Implements `Stager`."""

    def stage_out(self, slot: int, piece: Piece) -> None:
        threading.Event().wait()

    stage_in = stage_out

    def sum(self, slot: int, piece: Piece) -> int:
        threading.Event().wait()
        raise AssertionError

    def copy(
        self, slot: int, peer: DeviceMemoryName, source_ids: Sequence[int], piece: Piece
    ) -> int:
        raise RuntimeError("the memory behind the address is gone")


def make_engine(settings: EngineSettings, memory: int) -> EngineCore:
    from pagemesh.loading.engine import load_engine
    from tests.support.host_gpu import HostGpu

    engine = load_engine(
        settings.model,
        settings.cache,
        settings.scheduler,
        # The CPU's way of writing KV knows no padding, which graphs need.
        replace(settings.hardware, enforce_eager=True),
        memory,
        gpu=HostGpu(),
    )
    if "STAGING_HANGS" in os.environ:
        assert isinstance(engine.kv, StagedKv)
        engine.kv.stager = HangingStager()
    return engine


if __name__ == "__main__":
    socket, heartbeat, memory, *channels = map(int, sys.argv[1:])
    main(socket, heartbeat, memory, channels, make_engine)
