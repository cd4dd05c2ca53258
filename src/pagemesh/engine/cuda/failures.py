"""What becomes of errors of a device: some are one batch's, after others it computes nothing any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from pagemesh.engine.accelerator import Accelerator
from pagemesh.errors import ConfigError, DeviceLostError, InternalError, PagemeshError

_NO_MEMORY: Final = (
    "the GPU's memory does not suffice for this step: lower --max-num-batched-tokens, --max-num-seqs or"
    " --gpu-memory-utilization"
)

_EXCLUSIVE: Final = "busy or unavailable"
"""How CUDA says that a device lets no other process in (cudaErrorDevicesUnavailable)."""


@contextmanager
def failing_at_start(purpose: str) -> Iterator[None]:
    """A device that fails before anything is served is a ConfigError that says for what, and what may be done."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the GPU's memory does not suffice for {purpose}: nvidia-smi lists who else has some of it"
            f" ({_first_line(error)})"
        ) from error
    except torch.AcceleratorError as error:
        if _EXCLUSIVE in str(error):
            raise ConfigError(
                f"the GPU cannot be had for {purpose}: another process has it for itself (its compute mode is"
                " exclusive, which `nvidia-smi --compute-mode=DEFAULT` ends), or it is being reset"
            ) from error
        raise ConfigError(f"the GPU fails for {purpose}: {_first_line(error)}") from error


@contextmanager
def failing_alone(accelerator: Accelerator, timeout: float) -> Iterator[None]:
    """Whatever fails of work with the device meanwhile is said in an error of pagemesh's own.

    DeviceLostError when the device does nothing any more, within `timeout` seconds. CUDA calls such errors
    sticky: after a kernel's failure every call of the process fails. They are told from others by asking
    for something harmless, since torch has one class for all.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InternalError(f"{_NO_MEMORY} ({error})", reason="OUT_OF_MEMORY") from error
    except PagemeshError:
        raise
    except Exception as error:
        try:
            accelerator.wait(accelerator.record(), timeout)
        except Exception as failure:
            # Boundary to the device.
            message = f"{accelerator.device} computes nothing any more: {_first_line(error)}"
            raise DeviceLostError(message) from failure
        raise


def _first_line(error: Exception) -> str:
    """torch's messages go on with advice for programmers."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
