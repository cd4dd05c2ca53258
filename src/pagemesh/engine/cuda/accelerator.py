"""A CUDA device as an `Accelerator`, by torch (https://docs.pytorch.org/docs/stable/notes/cuda.html), and its errors.

Some errors are one batch's; after others the device computes nothing any more.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import torch

from pagemesh.engine.accelerator import Accelerator, Event, Graph
from pagemesh.errors import ConfigError, DeviceLostError, InternalError, PagemeshError

_POLL_SECONDS: Final = 2e-5
"""Between two looks at an event. To look costs a microsecond; the system wakes a sleeper some 50 late."""


_REGISTER_PORTABLE: Final = 1
"""cudaHostRegisterPortable: pinned for whatever the process does with CUDA."""


class CudaAccelerator:
    """One CUDA device, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        """`device` may leave the index out: it is then torch's current device."""
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)
        self._stream: torch.cuda.Stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._graph_memory = torch.cuda.graph_pool_handle()

    @property
    def device(self) -> torch.device:
        """See `Accelerator`; always with an index."""
        return self._device

    @contextmanager
    def computing(self) -> Iterator[None]:
        """See `Accelerator`; torch's current device and stream are this one's meanwhile."""
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            yield

    def pin(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def record(self) -> torch.cuda.Event:
        event: torch.cuda.Event = self._stream.record_event()
        return event

    def wait(self, event: Event, timeout: float) -> None:
        """See `Accelerator`. By polling: CUDA's own wait has no end when the device hangs."""
        deadline = time.monotonic() + timeout
        while not event.query():
            if time.monotonic() > deadline:
                raise DeviceLostError(f"{self._device} has not finished its work in {timeout:g} s")
            time.sleep(_POLL_SECONDS)

    def capture(self, work: Callable[[], None]) -> Graph:
        graph = torch.cuda.CUDAGraph()
        # Thread-local: what other threads do meanwhile with other streams is not forbidden.
        with (
            _without_garbage_collection(),
            torch.cuda.graph(
                graph,
                pool=self._graph_memory,
                stream=self._stream,
                capture_error_mode="thread_local",
            ),
        ):
            work()
        return graph

    @contextmanager
    def refusing_waits(self) -> Iterator[None]:
        """See `Accelerator`: torch notices its own waits."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def beside(self) -> CudaAccelerator:
        return CudaAccelerator(self._device)

    def follow(self, event: Event) -> None:
        assert isinstance(event, torch.cuda.Event), "an event of another kind of device"
        self._stream.wait_event(event)

    def adopt(self, memory: torch.Tensor) -> None:
        """See `Accelerator`. torch's own allocator of pinned memory rounds sizes up to a power of two."""
        with torch.cuda.device(self._device):
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            code = runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, _REGISTER_PORTABLE)
        if int(code) != 0:
            # CUDA would report it once more for whatever kernel is started next.
            with suppress(RuntimeError):
                torch.zeros(1, device=self._device)
            raise RuntimeError(f"CUDA cannot pin {memory.nbytes} bytes: error {int(code)}")

    def abandon(self, memory: torch.Tensor) -> None:
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        runtime.cudaHostUnregister(memory.data_ptr())

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pinned memory that is freed meanwhile would have an event recorded, in the middle of the capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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
