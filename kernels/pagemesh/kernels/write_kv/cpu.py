"""Storing keys and values as vector code: each token's heads go to two places, bit by bit as they are."""

from __future__ import annotations

import torch
from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import per_isa
from pagemesh.kernels.jit.elements import ELEMENT_TYPES, copy_elements
from pagemesh.kernels.jit.emit import I64, Emitter
from pagemesh.kernels.jit.rows import RowKernel, Values
from pagemesh.kernels.kv_scales import KvScales
from pagemesh.kernels.write_kv.interface import check_write


class CpuKvWriter:
    """`KvWriter` of CPU tensors. Keys and values in FP8 are for GPUs."""

    def places(self, slots: torch.Tensor, num_slots: int) -> torch.Tensor:
        """See `KvWriter`: the rows of key and value, int64 [T, 2]."""
        # Of all memory there is, the kernel would write where it is told to.
        if len(slots):
            lowest, highest = (int(slot) for slot in slots.aminmax())
            if not 0 <= lowest <= highest < num_slots:
                raise IndexError(f"slots {lowest} to {highest} are not all among {num_slots}")
        return torch.stack([slots, slots + num_slots], dim=1)

    def write(
        self,
        layer_kv: torch.Tensor,
        keys_values: torch.Tensor,
        places: torch.Tensor,
        scales: KvScales | None = None,
    ) -> None:
        """See `KvWriter`."""
        if scales is not None:
            raise ValueError(f"keys and values in {layer_kv.dtype} are for CUDA devices")
        check_write(layer_kv, keys_values, places, scales)
        rows = layer_kv.view(-1, layer_kv.shape[3] * layer_kv.shape[4])
        size = rows.shape[1]
        if keys_values.stride()[1:] != (size, layer_kv.shape[4], 1):
            keys_values = keys_values.contiguous()
        _compile(size, layer_kv.dtype).run(
            len(keys_values),
            2 * size,
            (keys_values.data_ptr(), keys_values.stride(0), rows.data_ptr(), places.data_ptr()),
        )


@per_isa
def _compile(size: int, torch_dtype: torch.dtype) -> RowKernel:
    element = ELEMENT_TYPES[str(torch_dtype).removeprefix("torch.")]
    arguments = {"tokens": element, "stride": None, "rows": element, "places": I64}

    def emit_row(e: Emitter, values: Values, token: ir.Value) -> None:
        b = e.builder
        source = e.at(values["tokens"], b.mul(token, values["stride"]))
        for index in range(2):
            place = b.load(e.at(values["places"], b.add(b.mul(token, e.int64(2)), e.int64(index))))
            target = e.at(values["rows"], b.mul(place, e.int64(size)))
            copy_elements(e, e.at(source, e.int64(index * size)), target, size)

    return RowKernel(arguments, emit_row)
