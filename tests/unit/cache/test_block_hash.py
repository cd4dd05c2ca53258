""""""

from __future__ import annotations

import pytest

from pagemesh.cache.block_hash import hash_blocks, root_hash, xor_hashes

ROOT = root_hash("fingerprint", 4, "float32")


def test_names_never_change_between_versions() -> None:
    # Routers and workers of different releases must agree on these.
    assert ROOT.hex() == "e39a0a8bef1973e4e02db82ec6d54e47"
    assert [name.hex() for name in hash_blocks(ROOT, range(9), 4)] == [
        "9f99b88b9cdd283e58f3e14574971c19",
        "d547f3a40d19fbb2b3694e50ac3f151f",
    ]


def test_names_of_a_class_of_arithmetic_never_change_either() -> None:
    root = root_hash("fingerprint", 4, "float32", arithmetic="cpu-fma-float32")
    assert root.hex() == "a04edec014a332059e1a9f1828947eca"


def test_classes_of_arithmetic_have_no_name_in_common() -> None:
    chains = [
        hash_blocks(root_hash("fingerprint", 4, "float32", arithmetic=name), range(40), 4)
        for name in ("", "cpu-fma-float32", "cuda-sm90-triton3.6-float32")
    ]
    assert len({name for chain in chains for name in chain}) == 30


def test_only_full_blocks_have_names() -> None:
    assert hash_blocks(ROOT, [1, 2, 3], 4) == []
    assert len(hash_blocks(ROOT, [1, 2, 3, 4], 4)) == 1
    assert len(hash_blocks(ROOT, [1, 2, 3, 4, 5, 6, 7], 4)) == 1


def test_equal_prefixes_have_equal_names_and_later_tokens_do_not_matter() -> None:
    first = hash_blocks(ROOT, [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9], 4)
    second = hash_blocks(ROOT, [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0], 4)
    assert first[:2] == second[:2]
    assert first[2] != second[2]


def test_a_name_covers_everything_before_it() -> None:
    first = hash_blocks(ROOT, [1, 2, 3, 4, 5, 6, 7, 8], 4)
    second = hash_blocks(ROOT, [0, 2, 3, 4, 5, 6, 7, 8], 4)
    assert first[1] != second[1]


def test_the_chain_continues_from_a_name() -> None:
    token_ids = list(range(100, 120))
    names = hash_blocks(ROOT, token_ids, 4)
    assert hash_blocks(names[1], token_ids[8:], 4) == names[2:]


@pytest.mark.parametrize(
    "other",
    [
        root_hash("fingerprinT", 4, "float32"),
        root_hash("fingerprint", 8, "float32"),
        root_hash("fingerprint", 4, "bfloat16"),
        root_hash("fingerprint", 4, "float32", b"tenant"),
        root_hash("fingerprint", 4, "float32", adapter="tenant"),
        root_hash("fingerprintf", 4, "loat32"),
        root_hash("fingerprint", 4, "float32", arithmetic="cpu-fma-float32"),
    ],
    ids=["fingerprint", "block size", "dtype", "salt", "adapter", "shifted fields", "arithmetic"],
)
def test_everything_that_makes_kv_differ_changes_the_root(other: bytes) -> None:
    assert other != ROOT


def test_a_salt_is_no_adapter() -> None:
    salted = root_hash("fingerprint", 4, "float32", b"tenant")
    adapted = root_hash("fingerprint", 4, "float32", adapter="tenant")
    assert salted != adapted


def test_names_are_read_as_big_endian_numbers_in_any_order() -> None:
    names = [bytes(15) + b"\x03", b"\x80" + bytes(15), bytes(14) + b"\x01\x01"]
    assert xor_hashes(names) == 0x80000000000000000000000000000102
    assert xor_hashes(reversed(names)) == xor_hashes(names)


def test_coming_and_leaving_cancel_out() -> None:
    assert xor_hashes([]) == 0
    assert xor_hashes([b"x" * 16, b"y" * 16, b"x" * 16]) == int.from_bytes(b"y" * 16)
