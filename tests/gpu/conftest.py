"""What needs a GPU is skipped without one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pagemesh.engine.cuda.accelerator import CudaAccelerator
from pagemesh.kernels.launch import is_interpreted

HERE = Path(__file__).parent


def pytest_sessionstart() -> None:
    """Kernels that the interpreter ran would say nothing about a GPU."""
    if torch.cuda.is_available() and is_interpreted():
        pytest.exit(
            "there is a CUDA device, but TRITON_INTERPRET=1 runs kernels in the interpreter", 1
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark this folder's tests, and skip them where torch sees no CUDA device."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def accelerator() -> CudaAccelerator:
    return CudaAccelerator(torch.device("cuda"))
