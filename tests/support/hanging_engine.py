"""An engine's process whose steps never end: `python -m tests.support.hanging_engine …`."""

from __future__ import annotations

import sys
import threading
from typing import Any

from pagemesh.engine.engine import EngineCore
from pagemesh.engine_process.pipe import EngineSettings
from pagemesh.engine_process.server import main


def hang(*arguments: Any) -> None:
    threading.Event().wait()


def make_engine(settings: EngineSettings, memory: int) -> EngineCore:
    from pagemesh.engine.cpu_runner import CpuRunner
    from pagemesh.loading import engine as loading

    # Only what the settings say.
    loading._STEP_PATIENCE = 0  # type: ignore[misc]
    engine = loading.load_engine(
        settings.model, settings.cache, settings.scheduler, settings.hardware, memory
    )
    CpuRunner.launch = hang  # type: ignore[method-assign, assignment]
    return engine


if __name__ == "__main__":
    socket, heartbeat, memory, *channels = map(int, sys.argv[1:])
    main(socket, heartbeat, memory, channels, make_engine)
