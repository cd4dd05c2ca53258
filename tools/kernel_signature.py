"""What Triton's compiler is told of a start's arguments, as its launcher derives it on a GPU."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
import triton.language as tl

from pagemesh.kernels.launch import Launch

_POINTERS: Final = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint64: "*u64",
    torch.uint32: "*u32",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
_DIVISIBILITY: Final = 16
_DIVISIBLE: Final = [["tt.divisibility", _DIVISIBILITY]]


class Signature(NamedTuple):
    """By a kernel's parameters."""

    types: dict[str, str]
    constants: dict[tuple[int, ...], object]
    """By the parameters' places."""
    attributes: dict[tuple[int, ...], list[list[object]]]


def signature_of(launch: Launch) -> Signature:
    """Types, constants and what is known to be divisible by 16; TypeError for an argument it cannot be."""
    signature = Signature({}, {}, {})
    for place, parameter in enumerate(launch.kernel.params):
        value = launch.arguments.get(parameter.name, parameter.default)
        kind, constant, divisible = _describe(value, parameter)
        signature.types[parameter.name] = kind
        if kind == "constexpr":
            signature.constants[place,] = constant
        elif divisible:
            signature.attributes[place,] = _DIVISIBLE
    return signature


def _describe(value: Any, parameter: Any) -> tuple[str, object, bool]:
    if parameter.is_constexpr or value is None:
        return "constexpr", value, False
    if isinstance(value, torch.Tensor):
        # Allocations begin at multiples of far more; a view may begin anywhere.
        offset = value.storage_offset() * value.element_size()
        return _POINTERS[value.dtype], None, offset % _DIVISIBILITY == 0
    if isinstance(value, bool):
        return "u1", None, False
    if isinstance(value, float):
        return "fp32", None, False
    if isinstance(value, int) and parameter.annotation_type:
        return parameter.annotation_type, None, False
    if isinstance(value, int):
        special = not parameter.do_not_specialize
        if value == 1 and special:
            return "constexpr", 1, False
        kind = "i32" if -(2**31) <= value < 2**31 else "i64"
        return kind, None, special and value % _DIVISIBILITY == 0
    if isinstance(value, tl.dtype):
        return "constexpr", value, False
    raise TypeError(f"{parameter.name} is {value!r}, which no kernel takes")
