"""CUDA's interprocess memory handles, by the driver's own functions.

The driver and not the runtime, because it tells where an allocation begins, which is what a handle is of,
and because its library has one name whatever CUDA torch was built with. (CUDA Driver API, "Memory
Management": cuIpcGetMemHandle, cuIpcOpenMemHandle, cuIpcCloseMemHandle, cuMemGetAddressRange.)
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

import structlog
import torch

from pagemesh.engine.cuda.peer_pools import Exported
from pagemesh.errors import UnavailableError
from pagemesh.kv_memory.peer import unreachable
from pagemesh.kv_memory.staged import DeviceMemoryName

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

HANDLE_BYTES: Final = 64
_ENABLE_PEER_ACCESS: Final = 1
"""CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the one flag that opening takes."""

_Address = ctypes.c_uint64


class _Handle(ctypes.Structure):
    """CUipcMemHandle; passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class CudaSharing:
    """Implements `MemorySharing` for a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        """`device` has an index."""
        self._device = device

    def export(self, memory: torch.Tensor) -> Exported | None:
        """See `MemorySharing`. Memory that torch made with expandable segments cannot be exported."""
        handle = _Handle()
        try:
            with self._context():
                base, _ = self._range_of(memory.data_ptr())
                self._call("cuIpcGetMemHandle", ctypes.byref(handle), _Address(base))
        except UnavailableError as error:
            log.warning("the KV cache is not shared with other processes", error=error.message)
            return None
        return Exported(bytes(handle.reserved), memory.data_ptr() - base)

    def open(self, name: DeviceMemoryName, num_bytes: int) -> CudaMemory:
        """See `MemorySharing`. On another device than its owner's, by peer access, which this enables."""
        if len(name.handle) != HANDLE_BYTES:
            raise unreachable(f"a handle has {len(name.handle)} bytes, not {HANDLE_BYTES}")
        handle = _Handle.from_buffer_copy(name.handle)
        address = _Address()
        with self._context():
            flags = ctypes.c_uint(_ENABLE_PEER_ACCESS)
            self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, flags)
            opened = CudaMemory(self, address.value)
            try:
                _, size = self._range_of(address.value)
                if name.offset + num_bytes > size:
                    raise unreachable(f"{num_bytes} bytes at {name.offset} are not in {size}")
                opened.memory = _tensor(address.value + name.offset, num_bytes, self._device)
            except BaseException:
                opened.close()
                raise
        return opened

    def close(self, address: int) -> None:
        """Undo one `open`, which gave this address."""
        try:
            with self._context():
                self._call("cuIpcCloseMemHandle", _Address(address))
        except UnavailableError as error:
            # Of a device that is lost, for example: it is unmapped with the end of this process.
            log.warning("memory of another process stays open", error=error.message)

    @cached_property
    def _driver(self) -> ctypes.CDLL:
        """Loaded when it is needed: an engine that shares nothing does without it."""
        try:
            driver = ctypes.CDLL("libcuda.so.1")
            driver.cuIpcOpenMemHandle_v2.argtypes = (
                ctypes.POINTER(_Address),
                _Handle,
                ctypes.c_uint,
            )
        except (OSError, AttributeError) as error:
            raise unreachable(f"CUDA's driver has no interprocess handles: {error}") from error
        return driver

    def _range_of(self, address: int) -> tuple[int, int]:
        """First address and size of the allocation that an address is in."""
        base, size = _Address(), ctypes.c_size_t()
        self._call(
            "cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), _Address(address)
        )
        return base.value, size.value

    @contextmanager
    def _context(self) -> Iterator[None]:
        """Meanwhile the context that torch uses is this thread's; a new thread has none."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(self._device.index))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            self._call("cuCtxPushCurrent_v2", context)
            try:
                yield
            finally:
                self._driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        finally:
            self._driver.cuDevicePrimaryCtxRelease_v2(device)

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._driver, function)(*arguments)
        if code:
            raise unreachable(f"{function} on {self._device} gives error {code}")


class CudaMemory:
    """Implements `OpenedMemory`."""

    def __init__(self, sharing: CudaSharing, address: int) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)
        self._sharing = sharing
        self._address: int | None = address

    def close(self) -> None:
        address, self._address = self._address, None
        if address is not None:
            self._sharing.close(address)


def _tensor(address: int, num_bytes: int, device: torch.device) -> torch.Tensor:
    """Memory that is not torch's own as uint8 [num_bytes], on this device whichever it lies on.

    `__cuda_array_interface__` would give it the device that it lies on, which this process may not see.
    """
    construct: Any = torch._C._construct_storage_from_data_pointer
    empty = torch.empty(0, dtype=torch.uint8, device=device)
    return empty.set_(construct(address, empty.device, num_bytes))
