"""How a range of tokens is cut into what messages carry."""

from __future__ import annotations

import random

import pytest

from pagemesh.core.kv import KvLayout
from pagemesh.kv_transfer.frames import (
    MAX_PAYLOAD_BYTES,
    KvPart,
    PartCutter,
    cut_into_parts,
    num_blocks_of,
)

SMALL = KvLayout.uniform(block_size=16, num_layers=2, num_kv_heads=1, head_dim=2, dtype="float32")
# 4 MiB a block, 128 KiB of it in each layer.
LARGE = KvLayout.uniform(
    block_size=16, num_layers=32, num_kv_heads=16, head_dim=128, dtype="bfloat16"
)
# 384 KiB a block.
MEDIUM = KvLayout.uniform(
    block_size=16, num_layers=12, num_kv_heads=4, head_dim=64, dtype="float32"
)


@pytest.mark.parametrize(
    ("num_tokens", "expected"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (160, 10)]
)
def test_blocks_are_counted_with_the_last_one(num_tokens: int, expected: int) -> None:
    assert num_blocks_of(num_tokens, 16) == expected


def test_small_blocks_travel_together() -> None:
    assert list(cut_into_parts(SMALL, 0, 70, MAX_PAYLOAD_BYTES)) == [KvPart(0, 5, 0, 2, 70)]


def test_blocks_are_cut_into_runs_of_about_a_mebibyte() -> None:
    assert list(cut_into_parts(MEDIUM, 16, 90, MAX_PAYLOAD_BYTES)) == [
        KvPart(1, 2, 0, 12, 32),
        KvPart(3, 2, 0, 12, 32),
        KvPart(5, 1, 0, 12, 10),
    ]


def test_a_large_block_is_cut_by_layers() -> None:
    assert list(cut_into_parts(LARGE, 16, 33, MAX_PAYLOAD_BYTES)) == [
        KvPart(1, 1, 0, 8, 16),
        KvPart(1, 1, 8, 8, 16),
        KvPart(1, 1, 16, 8, 16),
        KvPart(1, 1, 24, 8, 16),
        KvPart(2, 1, 0, 8, 1),
        KvPart(2, 1, 8, 8, 1),
        KvPart(2, 1, 16, 8, 1),
        KvPart(2, 1, 24, 8, 1),
    ]


def test_nothing_is_cut_from_an_empty_range() -> None:
    assert list(cut_into_parts(SMALL, 32, 32, MAX_PAYLOAD_BYTES)) == []


@pytest.mark.parametrize("layout", [SMALL, MEDIUM, LARGE], ids=["small", "medium", "large"])
def test_parts_cover_each_block_and_layer_once(layout: KvLayout) -> None:
    covered = [
        (block, layer)
        for part in cut_into_parts(layout, 32, 16 * 11 + 3, MAX_PAYLOAD_BYTES)
        for block in range(part.first_block, part.first_block + part.num_blocks)
        for layer in range(part.first_layer, part.first_layer + part.num_layers)
    ]
    expected = {(block, layer) for block in range(2, 12) for layer in range(layout.num_layers)}
    assert len(covered) == len(set(covered))
    assert set(covered) == expected


def drain(cutter: PartCutter) -> list[KvPart]:
    parts = []
    while (part := cutter.next_part()) is not None:
        parts.append(part)
    return parts


def test_nothing_is_cut_before_it_is_ready() -> None:
    cutter = PartCutter(MEDIUM, 0, 70, MAX_PAYLOAD_BYTES)
    assert cutter.next_part() is None
    cutter.add_ready(15, 12)
    assert cutter.next_part() is None
    assert not cutter.is_done


def test_early_layers_are_cut_while_later_ones_are_not_ready() -> None:
    cutter = PartCutter(MEDIUM, 0, 512, MAX_PAYLOAD_BYTES)
    cutter.add_ready(512, 1)
    assert drain(cutter) == [KvPart(0, 32, 0, 1, 512)]
    cutter.add_ready(512, 4)
    # Three layers that are ready together: ten blocks of them are 960 KiB.
    assert drain(cutter) == [
        KvPart(0, 10, 1, 3, 160),
        KvPart(10, 10, 1, 3, 160),
        KvPart(20, 10, 1, 3, 160),
        KvPart(30, 2, 1, 3, 32),
    ]
    assert not cutter.is_done
    cutter.add_ready(512, 12)
    assert {(part.first_layer, part.num_layers) for part in drain(cutter)} == {(4, 8)}
    assert cutter.is_done


def test_full_blocks_are_cut_and_the_last_one_when_the_prompt_ends_in_it() -> None:
    cutter = PartCutter(SMALL, 16, 70, MAX_PAYLOAD_BYTES)
    cutter.add_ready(40, 2)
    assert drain(cutter) == [KvPart(1, 1, 0, 2, 16)]
    cutter.add_ready(69, 1)
    assert drain(cutter) == [KvPart(2, 2, 0, 1, 32)]
    cutter.add_ready(70, 1)
    assert drain(cutter) == [KvPart(4, 1, 0, 1, 6)]
    cutter.add_ready(70, 2)
    assert drain(cutter) == [KvPart(2, 3, 1, 1, 38)]
    assert cutter.is_done


def test_the_beginning_of_a_prompt_is_cut_before_what_is_behind_it() -> None:
    cutter = PartCutter(MEDIUM, 0, 64, MAX_PAYLOAD_BYTES)
    cutter.add_ready(32, 6)
    assert drain(cutter) == [KvPart(0, 2, 0, 6, 32)]
    cutter.add_ready(32, 12)
    cutter.add_ready(64, 3)
    assert drain(cutter) == [KvPart(0, 2, 6, 6, 32), KvPart(2, 2, 0, 3, 32)]


def test_what_is_told_late_or_twice_changes_nothing() -> None:
    cutter = PartCutter(SMALL, 0, 32, MAX_PAYLOAD_BYTES)
    cutter.add_ready(32, 2)
    cutter.add_ready(32, 1)
    cutter.add_ready(16, 2)
    assert drain(cutter) == [KvPart(0, 2, 0, 2, 32)]
    assert cutter.is_done


@pytest.mark.parametrize("layout", [SMALL, MEDIUM, LARGE], ids=["small", "medium", "large"])
@pytest.mark.parametrize("chunk", [7, 16, 50, 300])
@pytest.mark.parametrize("layers_each", [1, 3])
@pytest.mark.parametrize("num_taken", [0, 1, 1000], ids=["slow", "some", "fast"])
def test_any_order_of_news_gives_each_block_and_layer_once_and_never_too_early(
    layout: KvLayout, chunk: int, layers_each: int, num_taken: int
) -> None:
    """`num_taken` parts at most are taken between two news."""
    end = 16 * 11 + 3
    cutter = PartCutter(layout, 32, end, MAX_PAYLOAD_BYTES)
    ready = [0] * layout.num_layers
    covered: list[tuple[int, int]] = []

    def take(num_parts: int) -> None:
        for _ in range(num_parts):
            part = cutter.next_part()
            if part is None:
                return
            last = part.first_block + part.num_blocks
            assert part.num_tokens == min(end, last * 16) - part.first_block * 16
            for layer in range(part.first_layer, part.first_layer + part.num_layers):
                assert min(end, last * 16) <= ready[layer]
                covered.extend((block, layer) for block in range(part.first_block, last))

    for start in range(0, end, chunk):
        for num_layers in (*range(layers_each, layout.num_layers, layers_each), layout.num_layers):
            num_tokens = min(end, start + chunk)
            ready[:num_layers] = [num_tokens] * num_layers
            cutter.add_ready(num_tokens, num_layers)
            take(num_taken)
    take(10**6)
    assert cutter.is_done
    assert len(covered) == len(set(covered)) == 10 * layout.num_layers


def test_late_layers_that_are_cut_in_larger_runs_leave_nothing_of_the_early_ones_behind() -> None:
    # Four pairs of a block and a layer for each part.
    cutter = PartCutter(SMALL, 0, 96, 4 * SMALL.num_bytes_per_layer)
    cutter.add_ready(80, 1)
    assert cutter.next_part() == KvPart(0, 4, 0, 1, 64)
    assert cutter.next_part() == KvPart(4, 1, 0, 1, 16)
    cutter.add_ready(32, 2)
    assert cutter.next_part() == KvPart(0, 2, 1, 1, 32)
    cutter.add_ready(96, 2)
    assert cutter.next_part() == KvPart(2, 4, 1, 1, 64)
    assert not cutter.is_done
    assert cutter.next_part() == KvPart(5, 1, 0, 1, 16)
    assert cutter.is_done


def test_whatever_is_ready_when_each_block_and_layer_is_cut_once_and_the_end_is_known() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        num_layers, end = rng.randrange(1, 7), rng.randrange(1, 60)
        layout = KvLayout.uniform(4, num_layers, num_kv_heads=1, head_dim=1, dtype="float32")
        num_bytes = layout.num_bytes_per_layer * rng.randrange(1, 12)
        cutter = PartCutter(layout, 0, end, num_bytes)
        left = {(block, layer) for block in range(-(-end // 4)) for layer in range(num_layers)}
        num_tokens = 0
        while num_tokens < end:
            num_tokens = min(end, num_tokens + rng.randrange(1, 20))
            told = rng.sample(range(1, num_layers), rng.randrange(num_layers))
            for num_ready in (*sorted(told), num_layers):
                cutter.add_ready(num_tokens, num_ready)
                for _ in range(rng.randrange(4)):
                    _cut(cutter, left)
        while not cutter.is_done:
            _cut(cutter, left)
        assert left == set()


def _cut(cutter: PartCutter, left: set[tuple[int, int]]) -> None:
    """Take the next part, if there is one, out of what is left."""
    assert cutter.is_done == (not left)
    part = cutter.next_part()
    if part is not None:
        for block in range(part.first_block, part.first_block + part.num_blocks):
            for layer in range(part.first_layer, part.first_layer + part.num_layers):
                left.remove((block, layer))
