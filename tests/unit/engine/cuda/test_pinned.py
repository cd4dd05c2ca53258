from __future__ import annotations

import pytest
import structlog
import torch

from pagemesh.core.kv import KvLayout
from pagemesh.engine.cuda.pinned import HostBuffers
from tests.support.host_accelerator import HostAccelerator

LAYOUT = KvLayout.uniform(num_layers=2, num_kv_heads=1, head_dim=8, block_size=16, dtype="float32")


def test_memory_that_cannot_be_pinned_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers, accelerator = HostBuffers.reserve(LAYOUT, 3, None), HostAccelerator()
    adopt = accelerator.adopt

    def refuse_swap_space(memory: torch.Tensor) -> None:
        if memory is buffers.swap_space:
            raise RuntimeError("CUDA cannot pin 6144 bytes: error 1")
        adopt(memory)

    monkeypatch.setattr(accelerator, "adopt", refuse_swap_space)
    with structlog.testing.capture_logs() as logs:
        buffers.pin(accelerator)
    assert logs == [
        {
            "event": "memory cannot be pinned",
            "log_level": "warning",
            "num_bytes": 6144,
            "error": "CUDA cannot pin 6144 bytes: error 1",
        }
    ]
    assert buffers.pinned == [buffers.slots]
    buffers.unpin(accelerator)
    assert buffers.pinned == []
    assert accelerator.num_pinned == 0
