from __future__ import annotations

import pytest
import torch

from pagemesh.engine.cuda.accelerator import failing_alone, failing_at_start
from pagemesh.errors import ConfigError, DeviceLostError, InternalError
from tests.support.host_accelerator import HostAccelerator


def fail(error: Exception, accelerator: HostAccelerator) -> None:
    with failing_alone(accelerator, timeout=1.0):
        raise error


def test_a_failure_that_leaves_the_device_well_stays_as_it_is() -> None:
    with pytest.raises(ValueError, match="of a shape"):
        fail(ValueError("of a shape"), HostAccelerator())


def test_want_of_memory_names_the_settings() -> None:
    with pytest.raises(InternalError, match="--max-num-batched-tokens, --max-num-seqs") as caught:
        fail(torch.OutOfMemoryError("tried to allocate 9 GiB"), HostAccelerator())
    assert caught.value.reason == "OUT_OF_MEMORY"
    assert "9 GiB" in caught.value.message
    assert not isinstance(caught.value, DeviceLostError)


def test_a_device_that_fails_again_is_lost() -> None:
    error = RuntimeError("illegal memory access\nCompile with TORCH_USE_CUDA_DSA")
    with pytest.raises(DeviceLostError) as caught:
        fail(error, HostAccelerator(is_lost=True))
    assert caught.value.message == (
        "cpu computes nothing any more: RuntimeError: illegal memory access"
    )


def test_errors_of_pagemeshs_own_are_not_looked_into() -> None:
    with pytest.raises(ConfigError):
        fail(ConfigError("x"), HostAccelerator(is_lost=True))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee the docs"),
            "the GPU's memory does not suffice for the model's weights: nvidia-smi lists who else has some of it"
            " (OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.)",
        ),
        (
            torch.AcceleratorError(
                "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel"
            ),
            "the GPU cannot be had for the model's weights: another process has it for itself (its compute mode is"
            " exclusive, which `nvidia-smi --compute-mode=DEFAULT` ends), or it is being reset",
        ),
        (
            torch.AcceleratorError(
                "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors"
            ),
            "the GPU fails for the model's weights: AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        ),
    ],
    ids=["full", "exclusive", "broken"],
)
def test_a_device_that_cannot_be_had_is_one_sentence(error: Exception, said: str) -> None:
    with pytest.raises(ConfigError) as caught, failing_at_start("the model's weights"):
        raise error
    assert caught.value.message == said


def test_a_bug_before_the_start_stays_one() -> None:
    with pytest.raises(ValueError, match="of a shape"), failing_at_start("the model's weights"):
        raise ValueError("of a shape")
