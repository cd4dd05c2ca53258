"""What is asked of CUDA's driver to share memory, and what of its answers; a played driver answers.

Whether the real one does what is assumed here, `tests/gpu` says.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pagemesh.engine.cuda.ipc import CudaSharing
from pagemesh.errors import UnavailableError
from pagemesh.kv_memory.staged import DeviceMemoryName

CPU = torch.device("cpu", 0)
# With zeros in it, as real ones have.
HANDLE = bytes([7, 0, 9]) + bytes(60) + b"\x01"


class Driver:
    """One allocation of 4096 bytes of the host, which it exports and opens."""

    def __init__(self) -> None:
        self.memory = torch.arange(4096, dtype=torch.int32).to(torch.uint8)
        self.failing: dict[str, int] = {}
        self.contexts: list[str] = []
        self.opened: list[int] = []
        self.flags: list[int] = []
        for name, answer in (
            ("cuDeviceGet", self._device_get),
            ("cuDevicePrimaryCtxRetain", self._device_primary_ctx_retain),
            ("cuDevicePrimaryCtxRelease_v2", self._device_primary_ctx_release),
            ("cuCtxPushCurrent_v2", self._ctx_push_current),
            ("cuCtxPopCurrent_v2", self._ctx_pop_current),
            ("cuMemGetAddressRange_v2", self._mem_get_address_range),
            ("cuIpcGetMemHandle", self._ipc_get_mem_handle),
            ("cuIpcOpenMemHandle_v2", self._ipc_open_mem_handle),
            ("cuIpcCloseMemHandle", self._ipc_close_mem_handle),
        ):
            setattr(self, name, self._function(name, answer))

    def _function(self, name: str, answer: Callable[..., None]) -> Any:

        def function(*arguments: Any) -> int:
            if name in self.failing:
                return self.failing[name]
            if name.startswith(("cuMem", "cuIpc")):
                assert self.contexts[-2:] == ["retained", "pushed"]
            answer(*arguments)
            return 0

        return function

    def _device_get(self, device: Any, ordinal: Any) -> None:
        device._obj.value = ordinal.value

    def _device_primary_ctx_retain(self, context: Any, device: Any) -> None:
        context._obj.value = 1234
        self.contexts.append("retained")

    def _device_primary_ctx_release(self, device: Any) -> None:
        assert self.contexts.pop() == "retained"

    def _ctx_push_current(self, context: Any) -> None:
        assert context.value == 1234
        self.contexts.append("pushed")

    def _ctx_pop_current(self, context: Any) -> None:
        assert self.contexts.pop() == "pushed"

    def _mem_get_address_range(self, base: Any, size: Any, address: Any) -> None:
        assert 0 <= address.value - self.memory.data_ptr() < 4096
        base._obj.value, size._obj.value = self.memory.data_ptr(), 4096

    def _ipc_get_mem_handle(self, handle: Any, address: Any) -> None:
        assert address.value == self.memory.data_ptr()
        ctypes.memmove(ctypes.addressof(handle._obj), HANDLE, 64)

    def _ipc_open_mem_handle(self, address: Any, handle: Any, flags: Any) -> None:
        assert bytes(handle.reserved) == HANDLE
        address._obj.value = self.memory.data_ptr()
        self.flags.append(flags.value)
        self.opened.append(address._obj.value)

    def _ipc_close_mem_handle(self, address: Any) -> None:
        self.opened.remove(address.value)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(ctypes, "CDLL", {"libcuda.so.1": driver}.__getitem__)
    return driver


@pytest.fixture
def sharing(driver: Driver) -> CudaSharing:
    return CudaSharing(CPU)


def name(handle: bytes = HANDLE, offset: int = 256) -> DeviceMemoryName:
    return DeviceMemoryName(1, handle, offset, 1)


def test_memory_is_named_by_its_allocation_and_its_place_there(
    driver: Driver, sharing: CudaSharing
) -> None:
    assert sharing.export(driver.memory[512:1024]) == (HANDLE, 512)
    assert driver.contexts == []


@pytest.mark.parametrize("function", ["cuMemGetAddressRange_v2", "cuIpcGetMemHandle"])
def test_memory_that_the_driver_does_not_share_is_not(
    driver: Driver, sharing: CudaSharing, function: str
) -> None:
    driver.failing[function] = 1
    assert sharing.export(driver.memory) is None
    assert driver.contexts == []


def test_opened_memory_is_the_named_part_until_it_is_closed(
    driver: Driver, sharing: CudaSharing
) -> None:
    opened = sharing.open(name(), 3840)
    assert opened.memory.dtype == torch.uint8
    assert opened.memory.data_ptr() == driver.memory.data_ptr() + 256
    assert torch.equal(opened.memory, driver.memory[256:])
    assert driver.flags == [1]
    assert driver.opened == [driver.memory.data_ptr()]
    opened.close()
    opened.close()
    assert driver.opened == []
    assert driver.contexts == []


def test_memory_that_is_not_all_there_is_closed_again(driver: Driver, sharing: CudaSharing) -> None:
    with pytest.raises(UnavailableError, match="3841 bytes at 256 are not in 4096"):
        sharing.open(name(), 3841)
    assert driver.opened == []
    assert driver.contexts == []


@pytest.mark.parametrize(
    "function",
    [
        "cuDeviceGet",
        "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent_v2",
        "cuIpcOpenMemHandle_v2",
        "cuMemGetAddressRange_v2",
    ],
)
def test_what_the_driver_refuses_is_out_of_reach(
    driver: Driver, sharing: CudaSharing, function: str
) -> None:
    driver.failing[function] = 217
    with pytest.raises(UnavailableError, match=f"{function} on cpu:0 gives error 217") as caught:
        sharing.open(name(), 16)
    assert caught.value.reason == "KV_MEMORY_UNREACHABLE"
    assert driver.opened == []
    assert driver.contexts == []


def no_such_library(name: str) -> ctypes.CDLL:
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize(
    "load", [no_such_library, {"libcuda.so.1": object()}.__getitem__], ids=["none", "too old"]
)
def test_without_the_drivers_handles_nothing_is_shared(
    monkeypatch: pytest.MonkeyPatch, load: Callable[[str], Any]
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", load)
    sharing = CudaSharing(CPU)
    assert sharing.export(torch.zeros(8)) is None
    with pytest.raises(UnavailableError, match="no interprocess handles") as caught:
        sharing.open(name(), 16)
    assert caught.value.reason == "KV_MEMORY_UNREACHABLE"


def test_what_is_no_handle_is_not_given_to_the_driver(driver: Driver, sharing: CudaSharing) -> None:
    with pytest.raises(UnavailableError, match="a handle has 63 bytes, not 64"):
        sharing.open(name(HANDLE[:63]), 16)
    assert driver.flags == []


def test_memory_that_cannot_be_closed_harms_nobody(driver: Driver, sharing: CudaSharing) -> None:
    opened = sharing.open(name(), 16)
    driver.failing["cuIpcCloseMemHandle"] = 700
    opened.close()
    assert driver.contexts == []
