"""Blocks are moved as the definition says, and the checksum on the way is the payload's, whoever moves them."""

from __future__ import annotations

import pytest
import torch

from pagemesh.core.kv import KvLayout
from pagemesh.kernels.block_copy import check_pairs, checksum_of, make_block_copier
from pagemesh.kernels.block_copy.reference import ReferenceBlockCopier
from pagemesh.kv_memory.memory import KvMemory
from tests.support.kv_bytes import read_kv

# A block's words need not be a power of two, nor fill a program.
sizes = pytest.mark.parametrize("num_words", [1, 20, 1030])


def words(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=generator)


def unsigned(checksum: torch.Tensor) -> int:
    return int(checksum) % 2**64


@sizes
def test_blocks_are_gathered_in_their_order(device: torch.device, num_words: int) -> None:
    pool, ids = words(3, 6, num_words), torch.tensor([4, 0, 5])
    memory = torch.full((5, 3, num_words), 7)
    there = memory.to(device)
    copier = make_block_copier(device)
    checksum = copier.gather(pool.to(device), ids.to(device), there[1:4])
    expected = torch.empty(3, 3, num_words, dtype=torch.int64)
    expected_checksum = ReferenceBlockCopier().gather(pool, ids, expected)
    memory[1:4] = expected
    assert torch.equal(there.cpu(), memory)
    assert torch.equal(expected, pool[:, ids])
    assert checksum.cpu().tolist() == expected_checksum.tolist()
    assert unsigned(checksum) == checksum_of(expected.numpy().tobytes())


@sizes
def test_blocks_are_scattered_and_nothing_else_is_touched(
    device: torch.device, num_words: int
) -> None:
    pool, source, ids = words(3, 6, num_words), words(3, 2, num_words) ^ 3, torch.tensor([5, 1])
    there = pool.to(device, copy=True)
    checksum = make_block_copier(device).scatter(source.to(device), there, ids.to(device))
    expected = pool.clone()
    expected[:, [5, 1]] = source
    assert torch.equal(there.cpu(), expected)
    assert unsigned(checksum) == checksum_of(source.numpy().tobytes())


def test_some_layers_alone(device: torch.device) -> None:
    pool, ids = words(6, 5, 4), torch.tensor([2, 3])
    out = torch.zeros(2, 2, 4, dtype=torch.int64, device=device)
    make_block_copier(device).gather(pool.to(device)[2:4], ids.to(device), out)
    assert torch.equal(out.cpu(), pool[2:4, 2:4])


def test_blocks_are_copied_within_a_pool_and_between_pools(device: torch.device) -> None:
    pool, other = words(2, 6, 20), words(2, 3, 20) ^ 3
    there, other_there = pool.to(device, copy=True), other.to(device, copy=True)
    sources, targets = (torch.tensor(ids, device=device) for ids in ([4, 0, 4], [1, 2, 5]))
    copier = make_block_copier(device)
    copier.copy(there, sources, there, targets)
    expected = pool.clone()
    expected[:, [1, 2, 5]] = pool[:, [4, 0, 4]]
    assert torch.equal(there.cpu(), expected)
    copier.copy(there, sources[:2], other_there, targets[:2])
    other[:, [1, 2]] = expected[:, [4, 0]]
    assert torch.equal(other_there.cpu(), other)


def test_blocks_are_copied_to_rows_in_which_their_planes_lie_side_by_side(
    device: torch.device,
) -> None:
    pool = words(3, 6, 20)
    there, rows = pool.to(device), torch.zeros(2, 3, 20, dtype=torch.int64, device=device)
    ids, places = (torch.tensor(each, device=device) for each in ([5, 1], [0, 1]))
    copier = make_block_copier(device)
    copier.copy(there, ids, rows.transpose(0, 1), places)
    assert torch.equal(rows.cpu(), pool[:, [5, 1]].transpose(0, 1))
    back = torch.zeros_like(there)
    copier.copy(rows.transpose(0, 1), places, back, ids)
    assert torch.equal(back.cpu()[:, [5, 1]], pool[:, [5, 1]])
    assert not back.cpu()[:, [0, 2, 3, 4]].any()


@sizes
def test_blocks_are_summed_up_while_they_are_copied_between_pools(
    device: torch.device, num_words: int
) -> None:
    pool, other = words(3, 6, num_words), words(3, 9, num_words) ^ 3
    there, other_there = pool.to(device), other.to(device, copy=True)
    sources, targets = (torch.tensor(ids, device=device) for ids in ([4, 0, 5], [8, 2, 3]))
    checksum = make_block_copier(device).copy_and_sum(there, sources, other_there, targets)
    other[:, [8, 2, 3]] = pool[:, [4, 0, 5]]
    assert torch.equal(other_there.cpu(), other)
    assert unsigned(checksum) == checksum_of(pool[:, [4, 0, 5]].contiguous().numpy().tobytes())


@sizes
def test_blocks_are_summed_up_where_they_are(device: torch.device, num_words: int) -> None:
    pool = words(3, 6, num_words)
    there, ids = pool.to(device, copy=True), torch.tensor([4, 0, 5], device=device)
    checksum = make_block_copier(device).sum(there, ids)
    assert unsigned(checksum) == checksum_of(pool[:, [4, 0, 5]].contiguous().numpy().tobytes())
    assert torch.equal(there.cpu(), pool)
    none = torch.empty(0, dtype=torch.int64, device=device)
    assert int(make_block_copier(device).sum(there, none)) == 0


def test_blocks_that_there_are_not_are_zeros_and_never_written(device: torch.device) -> None:
    memory = words(4, 5, 20)
    there, ids = memory.to(device, copy=True), torch.tensor([-1, 5, 3, 1 << 40], device=device)
    pool = there[1:3]
    out = torch.full((2, 4, 20), 7, device=device)
    copier = make_block_copier(device)
    copier.gather(pool, ids, out)
    expected = torch.zeros(2, 4, 20, dtype=torch.int64)
    expected[:, 2] = memory[1:3, 3]
    assert torch.equal(out.cpu(), expected)
    copier.scatter(torch.ones_like(out), pool, ids)
    memory[1:3, 3] = 1
    assert torch.equal(there.cpu(), memory)


def test_no_blocks_are_no_work(device: torch.device) -> None:
    none = torch.empty(0, dtype=torch.int64, device=device)
    out = torch.empty(2, 0, 4, dtype=torch.int64, device=device)
    assert int(make_block_copier(device).gather(words(2, 5, 4).to(device), none, out)) == 0


def test_gathered_bytes_are_what_kv_memory_reads(device: torch.device) -> None:
    layout = KvLayout.uniform(
        block_size=2, num_layers=3, num_kv_heads=1, head_dim=4, dtype="float32"
    )
    memory = KvMemory(layout, num_blocks=5)
    memory.bytes[:] = torch.arange(3 * 2 * 5 * 32).view(3, 2, 5, 32).numpy() % 251
    pool = torch.from_numpy(memory.bytes).view(torch.int64).view(6, 5, 4)
    out = torch.empty(4, 2, 4, dtype=torch.int64, device=device)
    ids = torch.tensor([4, 1], device=device)
    checksum = make_block_copier(device).gather(pool[2:6].to(device), ids, out)
    payload = read_kv(memory, [4, 1], first_layer=1, num_layers=2)
    assert out.cpu().numpy().tobytes() == payload
    assert unsigned(checksum) == checksum_of(payload)


def test_checksums_by_hand() -> None:
    assert checksum_of(b"") == 0
    # What splitmix64 gives first and second from the seed 0.
    assert checksum_of(bytes(8)) == 0xE220A8397B1DCDAF
    assert checksum_of(bytes(16)) == (0xE220A8397B1DCDAF + 0x6E789E6AA1B965F4) % 2**64
    with pytest.raises(ValueError, match="12 bytes are not whole words of 8"):
        checksum_of(bytes(12))


def test_parts_of_a_payload_add_up() -> None:
    payload = words(70_000).numpy().tobytes()
    parts = checksum_of(payload[:80]) + checksum_of(payload[80:], first_word=10)
    assert parts % 2**64 == checksum_of(payload)


def test_changed_moved_and_missing_words_are_noticed() -> None:
    payload = words(64)
    right = checksum_of(payload.numpy().tobytes())
    others = [payload.roll(1), payload.flip(0), payload[torch.tensor([1, 0, *range(2, 64)])]]
    for place in range(64):
        changed = payload.clone()
        changed[place] ^= 1 << place % 63
        zeroed = payload.clone()
        zeroed[place] = 0
        others += [changed, zeroed]
    assert right not in [checksum_of(other.numpy().tobytes()) for other in others]


def test_what_does_not_fit_is_refused(device: torch.device) -> None:
    copier, pool = make_block_copier(device), words(2, 5, 4).to(device)
    ids = torch.tensor([0, 1], device=device)
    out = torch.empty(2, 2, 4, dtype=torch.int64, device=device)
    for wrong in (out[:1], out[..., :3].contiguous(), out[:, :1].contiguous()):
        with pytest.raises(ValueError, match=r"pool \[2, 5, 4\] do not fit a buffer"):
            copier.gather(pool, ids, wrong)
    with pytest.raises(ValueError, match=r"the buffer is torch\.int32 .* dense torch\.int64"):
        copier.scatter(out.int(), pool, ids)
    with pytest.raises(ValueError, match=r"the pool is .* strides \[20, 4, 2\]"):
        copier.gather(pool[..., ::2], ids, out)
    with pytest.raises(ValueError, match=r"ids on meta and a buffer on .* not on one device"):
        copier.gather(pool, ids.to("meta"), out)
    with pytest.raises(ValueError, match=r"cannot be copied to \[1\]"):
        copier.copy(pool, ids, pool, ids[:1])
    with pytest.raises(ValueError, match=r"cannot be copied to \[1\]"):
        copier.copy_and_sum(pool, ids, pool, ids[:1])
    with pytest.raises(ValueError, match=r"strides \[20, 4, 2\], .* dense words"):
        copier.sum(pool[..., ::2], ids)
    with pytest.raises(ValueError, match=r"the ids are torch\.int32 \[2\], not int64"):
        copier.sum(pool, ids.int())
    with pytest.raises(
        ValueError, match=r"\[2, 5, 4\] cannot be copied to \[2\] of .* \[1, 5, 4\]"
    ):
        copier.copy(pool, ids, pool[:1], ids)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(0, 1), (1, 2)], "block 1 is both source and target"),
        ([(3, 3)], "block 3 is both"),
        ([(0, 1), (2, 1)], "2 copies have only 1 targets"),
        ([(5, 1)], "block 5 cannot be copied to block 1: there are 5 and 5"),
        ([(0, -1)], "block 0 cannot be copied to block -1"),
    ],
)
def test_pairs_whose_order_would_matter_are_refused(
    pairs: list[tuple[int, int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_pairs(pairs, 5, 5, same_pool=True)


def test_the_same_numbers_in_two_pools_are_different_blocks() -> None:
    check_pairs([(0, 1), (1, 0)], 2, 2, same_pool=False)
