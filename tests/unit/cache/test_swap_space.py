import pytest

from pagemesh.cache.swap_space import SwapSpace


def test_blocks_are_handed_out_in_order_and_again_when_they_are_free() -> None:
    swap = SwapSpace(3)
    assert swap.allocate(2) == [0, 1]
    assert (swap.can_allocate(1), swap.can_allocate(2), swap.num_free_blocks) == (True, False, 1)
    swap.free([0, 1])
    assert swap.allocate(3) == [0, 1, 2]
    swap.check_integrity([[0, 2], [1]])


@pytest.mark.parametrize("tables", [[], [[0], [0]], [[1]]], ids=["leak", "shared", "other"])
def test_integrity_fails_when_the_holders_are_not_those_that_are_known(
    tables: list[list[int]],
) -> None:
    swap = SwapSpace(2)
    swap.allocate(1)
    with pytest.raises(AssertionError, match="lost or held twice"):
        swap.check_integrity(tables)


def test_a_block_that_is_freed_twice_is_a_bug() -> None:
    swap = SwapSpace(2)
    swap.free(swap.allocate(1))
    swap.free([0])
    with pytest.raises(AssertionError, match="lost or held twice"):
        swap.check_integrity([])
