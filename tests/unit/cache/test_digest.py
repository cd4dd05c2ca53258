"""Digests of names."""

from __future__ import annotations

from pagemesh.cache.block_hash import xor_names


def test_names_are_read_as_big_endian_numbers_in_any_order() -> None:
    names = [bytes(15) + b"\x03", b"\x80" + bytes(15), bytes(14) + b"\x01\x01"]
    assert xor_names(names) == 0x80000000000000000000000000000102
    assert xor_names(reversed(names)) == xor_names(names)


def test_coming_and_leaving_cancel_out() -> None:
    assert xor_names([]) == 0
    assert xor_names([b"x" * 16, b"y" * 16, b"x" * 16]) == int.from_bytes(b"y" * 16)
