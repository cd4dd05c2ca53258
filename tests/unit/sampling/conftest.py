"""Samplers are tested as they are on the CPU and as written in Triton."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pagemesh.kernels.dispatch import Backend, using


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Where the samplers that a test makes run; Triton's in its interpreter where there is no GPU."""
    backend: Backend = request.param
    has_gpu = backend == "cuda" and torch.cuda.is_available()
    with using(backend):
        yield torch.device("cuda" if has_gpu else "cpu")
