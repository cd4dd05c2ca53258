from __future__ import annotations

import pytest
import torch
import triton

from tests.support.tolerances import float32_tolerance


@pytest.mark.parametrize(
    ("device", "is_interpreted", "tolerance"),
    [("cpu", False, 2e-6), ("cpu", True, 2e-6), ("cuda", True, 2e-6), ("cuda", False, 1e-5)],
)
def test_only_what_a_gpu_runs_compiled_may_be_further_off(
    device: str, is_interpreted: bool, tolerance: float
) -> None:
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = is_interpreted
        assert float32_tolerance(torch.device(device)) == tolerance
