"""Every operation is tested as made for the CPU and as written in Triton."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pagemesh.kernels.dispatch import Backend, using
from pagemesh.kernels.linear import cuda_product
from pagemesh.kernels.linear.tiles import Tiles, choose_tiles


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Where the operations that a test makes run; Triton's in its interpreter where there is no GPU."""
    backend: Backend = request.param
    has_gpu = backend == "cuda" and torch.cuda.is_available()
    with using(backend):
        yield torch.device("cuda" if has_gpu else "cpu")


@pytest.fixture
def in_triton() -> Iterator[None]:
    """What a test makes is computed by Triton, on tensors that are made on the GPU, or, in its interpreter, on the CPU."""
    torch.manual_seed(8)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with using("cuda"), torch.inference_mode(), device:
        yield


@pytest.fixture(params=[False, True], ids=["whole", "split"])
def is_split(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether segments are programs of their own."""

    def choose(*args: Any, **kwargs: Any) -> Tiles:
        return choose_tiles(*args, **kwargs)._replace(is_split=request.param)

    monkeypatch.setattr(cuda_product, "choose_tiles", choose)
    return bool(request.param)
