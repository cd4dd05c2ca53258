"""The engine of a model on a device that the CPU plays, whose KV other devices may read."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig
from pagemesh.engine.engine import EngineCore
from pagemesh.kv_memory.memory import open_memory
from pagemesh.kv_memory.staged import StagedKv
from pagemesh.loading import profile_run
from pagemesh.loading.engine import load_engine
from tests.support.host_gpu import HostGpu
from tests.support.host_sharing import HostSharing


class Device:
    """An engine on a played device of its own."""

    def __init__(self, model: Path, sharing: HostSharing | None = None) -> None:
        self.sharing = sharing or HostSharing()
        descriptor = open_memory()
        # A CPU compiles no kernels for the sizes of steps: the largest one alone is computed at load.
        with patch.object(profile_run, "warm_up_batches", return_value=[]):
            self.engine: EngineCore = load_engine(
                ModelConfig(model=str(model), threads=1),
                CacheConfig(kv_cache_memory=0.02),
                SchedulerConfig(8, max_num_batched_tokens=64),
                HardwareConfig(enforce_eager=True),
                descriptor,
                gpu=HostGpu(sharing=self.sharing),
            )
        os.close(descriptor)

    @property
    def kv(self) -> StagedKv:
        assert isinstance(self.engine.kv, StagedKv)
        return self.engine.kv
