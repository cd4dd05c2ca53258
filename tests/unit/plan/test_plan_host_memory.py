"""The host's memory of a worker on a GPU."""

from __future__ import annotations

import pytest

from pagemesh.kv_memory.staged import NUM_SLOTS, SLOT_BYTES
from pagemesh.loading.cuda_weights import BUFFER_BYTES
from pagemesh.plan.worker import ALLOWANCE_GIB, HostMemory, host_memory
from pagemesh.sizing.plan import GIB


@pytest.mark.parametrize(
    ("held_first", "expected"), [(False, HostMemory(8, 11)), (True, HostMemory(11, 11))]
)
def test_a_model_counts_in_whole_gib_and_must_fit_where_the_host_holds_it(
    held_first: bool, expected: HostMemory
) -> None:
    assert host_memory(2 * GIB + 1, held_first=held_first) == expected


def test_the_buffers_are_a_small_part_of_what_is_allowed() -> None:
    buffers = 2 * BUFFER_BYTES + NUM_SLOTS * SLOT_BYTES
    assert buffers == 72 * 2**20
    assert buffers < ALLOWANCE_GIB * GIB / 100
