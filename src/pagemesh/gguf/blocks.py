"""The numbers in the blocks of ggml's types, exact in float32 and in the order of ggml's own operations.

Layouts are those of ggml (https://github.com/ggml-org/ggml, src/ggml-common.h), results those of its `dequantize_row_*`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pagemesh.gguf.container import GgufTensor

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]

_MOST_NUMBERS: Final = 2**18
"""Of one piece: 1 MiB in float32, which stays in a processor's cache until it is rounded."""


def dequantise(tensor: GgufTensor) -> Iterator[Floats]:
    """All numbers of a tensor in a row, float32, in pieces of whole blocks, about 1 MiB each.

    KeyError for a type that is not in `DEQUANTISED`.
    """
    unpack = DEQUANTISED[tensor.type.name]
    blocks = np.frombuffer(tensor.blocks, np.uint8).reshape(-1, tensor.type.block_bytes)
    num_blocks = max(1, _MOST_NUMBERS // tensor.type.block_size)
    for begin in range(0, len(blocks), num_blocks):
        # What is infinite or no number is found, and named, by whoever wants finite ones.
        with np.errstate(over="ignore", invalid="ignore"):
            numbers = unpack(blocks[begin : begin + num_blocks])
        yield numbers.reshape(-1)


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at an offset of each block, [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _shifted(packed: Bytes, group: int, shifts: range, mask: int) -> Bytes:
    """[blocks, bytes] → [blocks, numbers]: of each group of bytes the lowest bits of all, then the next of all."""
    by = np.array(shifts, np.uint8).reshape(-1, 1)
    parts = packed.reshape(len(packed), -1, 1, group) >> by
    return (parts & np.uint8(mask)).reshape(len(packed), -1)


def _nibbles(packed: Bytes, group: int) -> Bytes:
    return _shifted(packed, group, range(0, 8, 4), 0x0F)


def _fifth_bits(packed: Bytes) -> Bytes:
    """Four bytes of each block → bit 4 of its 32 numbers."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _f32(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return _half(blocks, 0)


def _bf16(blocks: Bytes) -> Floats:
    return (np.ascontiguousarray(blocks).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:], 16).astype(np.float32) - np.float32(8))


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:], 16).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    numbers = _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6])
    return _half(blocks, 0) * (numbers.astype(np.float32) - np.float32(16))


def _q5_1(blocks: Bytes) -> Floats:
    numbers = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8])
    return _half(blocks, 0) * numbers.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)


def _q2_k(blocks: Bytes) -> Floats:
    scales = blocks[:, :16]
    scale = _half(blocks, 80) * (scales & np.uint8(0x0F)).astype(np.float32)
    least = _half(blocks, 82) * (scales >> np.uint8(4)).astype(np.float32)
    numbers = _shifted(blocks[:, 16:80], 32, range(0, 8, 2), 0x03).astype(np.float32)
    return scale[:, :, None] * numbers.reshape(-1, 16, 16) - least[:, :, None]


def _q3_k(blocks: Bytes) -> Floats:
    # Four bits of 16 scales in eight bytes, two more in four.
    scales = _nibbles(blocks[:, 96:104], 8) | (
        _shifted(blocks[:, 104:108], 4, range(0, 8, 2), 0x03) << np.uint8(4)
    )
    scale = _half(blocks, 108) * (scales.astype(np.float32) - np.float32(32))
    # Where the third bit is not set, 4 is taken away.
    third = _shifted(blocks[:, :32], 32, range(8), 0x01) << np.uint8(2)
    bits = _shifted(blocks[:, 32:96], 32, range(0, 8, 2), 0x03) | third
    numbers: Floats = bits.astype(np.float32) - np.float32(4)
    return scale[:, :, None] * numbers.reshape(-1, 16, 16)


def _scales_of_8(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Twelve bytes of each block → eight scales and eight minima of six bits."""
    first, second, mixed = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    six, high = np.uint8(0x3F), np.uint8(0x30)
    scales = [first & six, (mixed & np.uint8(0x0F)) | (first >> np.uint8(2) & high)]
    minima = [second & six, (mixed >> np.uint8(4)) | (second >> np.uint8(2) & high)]
    return np.concatenate(scales, axis=1), np.concatenate(minima, axis=1)


def _with_minima(blocks: Bytes, numbers: Bytes) -> Floats:
    scales, minima = _scales_of_8(blocks[:, 4:16])
    scale = _half(blocks, 0) * scales.astype(np.float32)
    least = _half(blocks, 2) * minima.astype(np.float32)
    return scale[:, :, None] * numbers.astype(np.float32).reshape(-1, 8, 32) - least[:, :, None]


def _q4_k(blocks: Bytes) -> Floats:
    return _with_minima(blocks, _nibbles(blocks[:, 16:], 32))


def _q5_k(blocks: Bytes) -> Floats:
    fifth = _shifted(blocks[:, 16:48], 32, range(8), 0x01) << np.uint8(4)
    return _with_minima(blocks, _nibbles(blocks[:, 48:], 32) | fifth)


def _q6_k(blocks: Bytes) -> Floats:
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    scale = _half(blocks, 208) * scales
    high = _shifted(blocks[:, 128:192], 32, range(0, 8, 2), 0x03) << np.uint8(4)
    numbers = (_nibbles(blocks[:, :128], 64) | high).astype(np.float32) - np.float32(32)
    return scale[:, :, None] * numbers.reshape(-1, 16, 16)


_IQ4_NL_VALUES: Final = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)


def _iq4_nl(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _IQ4_NL_VALUES[_nibbles(blocks[:, 2:], 16)]


_MXFP4_VALUES: Final = np.array(
    [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32
)
"""Twice those of the format, and the scale is half of its."""


def _mxfp4(blocks: Bytes) -> Floats:
    exponent = blocks[:, :1].astype(np.uint32)
    # The two smallest scales are subnormal.
    bits = np.where(exponent < 2, 0x00200000 << exponent, (np.maximum(exponent, 1) - 1) << 23)
    return bits.astype(np.uint32).view(np.float32) * _MXFP4_VALUES[_nibbles(blocks[:, 1:], 16)]


DEQUANTISED: Final[dict[str, Callable[[Bytes], Floats]]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "MXFP4": _mxfp4,
}
"""What makes numbers of blocks, uint8 [blocks, bytes] → float32, by the names of the types."""
