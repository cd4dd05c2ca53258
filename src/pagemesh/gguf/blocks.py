"""The numbers in the blocks of ggml's types, exact in float32 and in the order of ggml's own operations.

Layouts are those of ggml (https://github.com/ggml-org/ggml, src/ggml-common.h), results those of its `dequantize_row_*`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pagemesh.gguf.container import GgufTensor

Bytes: TypeAlias = npt.NDArray[np.uint8]
Halves: TypeAlias = npt.NDArray[np.float16]
Floats: TypeAlias = npt.NDArray[np.float32]
Scales: TypeAlias = Halves | Floats | Bytes | npt.NDArray[np.int8]

_MOST_NUMBERS: Final = 2**18
"""Of one piece: 1 MiB in float32, which stays in a processor's cache until it is rounded."""


@dataclass(frozen=True, slots=True)
class Nibbles:
    """Codes of 4 bits: of each group of bytes first the lower halves, then the upper ones."""

    packed: Bytes
    """[blocks, bytes], a block's side by side."""

    group: int

    def codes(self) -> Bytes:
        """[blocks, numbers], a byte for each."""
        return _shifted(self.packed, self.group, range(0, 8, 4), 0x0F)


@dataclass(frozen=True, slots=True)
class SignedBytes:
    """Codes of 8 bits, each 128 lower as a signed number."""

    packed: Bytes
    """[blocks, bytes], a block's side by side."""

    def codes(self) -> Bytes:
        """[blocks, numbers]."""
        return self.packed ^ np.uint8(0x80)


@dataclass(frozen=True, slots=True)
class BlockParts:
    """What blocks are made of: scale · (code - centre) - minimum, or a table's entry in the place of the code."""

    codes: Bytes | Nibbles | SignedBytes
    """[blocks, numbers of one]."""

    bits: Literal[4, 8]
    """That hold each code."""

    scales: Scales
    """[blocks, groups]; times their unit, where they have one."""

    centre: int = 0
    table: tuple[float, ...] | None = None
    minimums: Scales | None = None
    units: Halves | None = None
    """[blocks, 1], of the scales."""

    minimum_units: Halves | None = None

    def numbers(self) -> Floats:
        """What they stand for, [blocks, numbers]."""
        codes = self.codes if isinstance(self.codes, np.ndarray) else self.codes.codes()
        numbers = codes.astype(np.float32) - np.float32(self.centre)
        if self.table is not None:
            numbers = np.array(self.table, np.float32)[codes]
        values = numbers.reshape(*self.scales.shape, -1)
        values = values * _products(self.scales, self.units)[:, :, None]
        if self.minimums is not None:
            values -= _products(self.minimums, self.minimum_units)[:, :, None]
        return values.reshape(len(values), -1)


def dequantise(tensor: GgufTensor) -> Iterator[Floats]:
    """All numbers of a tensor in a row, float32, in pieces of whole blocks, about 1 MiB each.

    KeyError for a type that is neither in `FLOATS` nor in `PACKED`.
    """
    name = tensor.type.name
    blocks = np.frombuffer(tensor.blocks, np.uint8).reshape(-1, tensor.type.block_bytes)
    num_blocks = max(1, _MOST_NUMBERS // tensor.type.block_size)
    for begin in range(0, len(blocks), num_blocks):
        piece = blocks[begin : begin + num_blocks]
        # What is infinite or no number is found, and named, by whoever wants finite ones.
        with np.errstate(over="ignore", invalid="ignore"):
            numbers = FLOATS[name](piece) if name in FLOATS else PACKED[name](piece).numbers()
        yield numbers.reshape(-1)


def _products(scales: Scales, units: Halves | None) -> Floats:
    values = scales.astype(np.float32)
    return values if units is None else values * units.astype(np.float32)


def _half(blocks: Bytes, at: int) -> Halves:
    """The float16 at an offset of each block, [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)


def _shifted(packed: Bytes, group: int, shifts: range, mask: int) -> Bytes:
    """[blocks, bytes] → [blocks, numbers]: of each group of bytes the lowest bits of all, then the next of all."""
    by = np.array(shifts, np.uint8).reshape(-1, 1)
    parts = packed.reshape(len(packed), -1, 1, group) >> by
    return (parts & np.uint8(mask)).reshape(len(packed), -1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """Four bytes of each block → bit 4 of its 32 numbers."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _f32(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return _half(blocks, 0).astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (np.ascontiguousarray(blocks).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Bytes) -> BlockParts:
    return BlockParts(Nibbles(blocks[:, 2:], 16), 4, _half(blocks, 0), 8)


def _q4_1(blocks: Bytes) -> BlockParts:
    codes = Nibbles(blocks[:, 4:], 16)
    return BlockParts(codes, 4, _half(blocks, 0), minimums=-_half(blocks, 2))


def _q5_0(blocks: Bytes) -> BlockParts:
    codes = Nibbles(blocks[:, 6:], 16).codes() | _fifth_bits(blocks[:, 2:6])
    return BlockParts(codes, 8, _half(blocks, 0), 16)


def _q5_1(blocks: Bytes) -> BlockParts:
    codes = Nibbles(blocks[:, 8:], 16).codes() | _fifth_bits(blocks[:, 4:8])
    return BlockParts(codes, 8, _half(blocks, 0), minimums=-_half(blocks, 2))


def _q8_0(blocks: Bytes) -> BlockParts:
    return BlockParts(SignedBytes(blocks[:, 2:]), 8, _half(blocks, 0), 128)


def _q2_k(blocks: Bytes) -> BlockParts:
    both = blocks[:, :16]
    return BlockParts(
        _shifted(blocks[:, 16:80], 32, range(0, 8, 2), 0x03),
        4,
        both & np.uint8(0x0F),
        minimums=both >> np.uint8(4),
        units=_half(blocks, 80),
        minimum_units=_half(blocks, 82),
    )


def _q3_k(blocks: Bytes) -> BlockParts:
    # Four bits of 16 scales in eight bytes, two more in four.
    scales = Nibbles(blocks[:, 96:104], 8).codes() | (
        _shifted(blocks[:, 104:108], 4, range(0, 8, 2), 0x03) << np.uint8(4)
    )
    # Where the third bit is not set, 4 is taken away.
    third = _shifted(blocks[:, :32], 32, range(8), 0x01) << np.uint8(2)
    codes = _shifted(blocks[:, 32:96], 32, range(0, 8, 2), 0x03) | third
    signed = (scales - np.uint8(32)).view(np.int8)
    return BlockParts(codes, 4, signed, 4, units=_half(blocks, 108))


def _scales_of_8(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Twelve bytes of each block → eight scales and eight minima of six bits."""
    first, second, mixed = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    six, high = np.uint8(0x3F), np.uint8(0x30)
    scales = [first & six, (mixed & np.uint8(0x0F)) | (first >> np.uint8(2) & high)]
    minima = [second & six, (mixed >> np.uint8(4)) | (second >> np.uint8(2) & high)]
    return np.concatenate(scales, axis=1), np.concatenate(minima, axis=1)


def _with_minima(blocks: Bytes, codes: Bytes | Nibbles, bits: Literal[4, 8]) -> BlockParts:
    scales, minima = _scales_of_8(blocks[:, 4:16])
    return BlockParts(
        codes,
        bits,
        scales,
        minimums=minima,
        units=_half(blocks, 0),
        minimum_units=_half(blocks, 2),
    )


def _q4_k(blocks: Bytes) -> BlockParts:
    return _with_minima(blocks, Nibbles(blocks[:, 16:], 32), 4)


def _q5_k(blocks: Bytes) -> BlockParts:
    fifth = _shifted(blocks[:, 16:48], 32, range(8), 0x01) << np.uint8(4)
    return _with_minima(blocks, Nibbles(blocks[:, 48:], 32).codes() | fifth, 8)


def _q6_k(blocks: Bytes) -> BlockParts:
    high = _shifted(blocks[:, 128:192], 32, range(0, 8, 2), 0x03) << np.uint8(4)
    codes = Nibbles(blocks[:, :128], 64).codes() | high
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return BlockParts(codes, 8, scales, 32, units=_half(blocks, 208))


_IQ4_NL_VALUES: Final = (
    *(-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0),
    *(1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0),
)


def _iq4_nl(blocks: Bytes) -> BlockParts:
    return BlockParts(Nibbles(blocks[:, 2:], 16), 4, _half(blocks, 0), table=_IQ4_NL_VALUES)


_MXFP4_VALUES: Final = (
    *(0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0),
    *(0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0),
)
"""Twice those of the format, and the scale is half of its."""


def _mxfp4(blocks: Bytes) -> BlockParts:
    exponent = blocks[:, :1].astype(np.uint32)
    # The two smallest scales are subnormal.
    bits = np.where(exponent < 2, 0x00200000 << exponent, (np.maximum(exponent, 1) - 1) << 23)
    scales = bits.astype(np.uint32).view(np.float32)
    return BlockParts(Nibbles(blocks[:, 1:], 16), 4, scales, table=_MXFP4_VALUES)


FLOATS: Final[dict[str, Callable[[Bytes], Floats]]] = {"F32": _f32, "F16": _f16, "BF16": _bf16}
"""What makes numbers of the bytes of floats, by the names of the types."""

PACKED: Final[dict[str, Callable[[Bytes], BlockParts]]] = {
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
"""What takes blocks apart, uint8 [blocks, bytes], by the names of the types."""
