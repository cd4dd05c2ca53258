"""An engine's process that rounds otherwise, and says so: `python -m tests.support.other_arithmetic …`.

What processors differ in is the last bit, and no processor computes as two. This one differs as two do, only more:
another epsilon in all norms changes every number behind them, and with that tokens.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from typing import Any, Final

from pagemesh.engine.engine import EngineCore
from pagemesh.engine_process.pipe import EngineSettings
from pagemesh.engine_process.server import main
from pagemesh.models.spec import DecoderSpec

NAME: Final = "test-coarse-float32"
_EPSILON: Final = 0.5


def make_engine(settings: EngineSettings, memory: int) -> EngineCore:
    from pagemesh.loading import engine

    loader: Any = importlib.import_module("pagemesh.models.loader")
    assemble = loader.assemble

    def assemble_otherwise(spec: DecoderSpec, *arguments: Any) -> Any:
        # Behind the fingerprint, which is the same as everybody's.
        return assemble(replace(spec, norm=replace(spec.norm, eps=_EPSILON)), *arguments)

    loader.assemble = assemble_otherwise
    loader.ModelTarget.arithmetic = lambda target, dtype: NAME
    return engine.load_engine(
        settings.model, settings.cache, settings.scheduler, settings.hardware, memory
    )


if __name__ == "__main__":
    socket, heartbeat, memory, *channels = map(int, sys.argv[1:])
    main(socket, heartbeat, memory, channels, make_engine)
