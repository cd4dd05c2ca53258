"""Workers hold equal weights once, and what nobody holds is given back; processes are really killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pagemesh.loading import shared_weights
from pagemesh.loading.shared_weights import MIN_BYTES, SharedWeights, weight_memory

DEADLINE = 30.0
SIZE = 3 * MIN_BYTES
PAGE = 4096

# Shares a weight, says whether it was there, and holds it.
USER = """
import random, sys
from pagemesh.loading.shared_weights import SharedWeights
weights, size = SharedWeights(int(sys.argv[1])), int(sys.argv[2])
shared = weights.share(memoryview(random.Random(1).randbytes(size)))
print(weights.found_bytes, weights.added_bytes, flush=True)
sys.stdin.read()
"""


def weight(seed: int, size: int = SIZE) -> memoryview:
    return memoryview(random.Random(seed).randbytes(size))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def memory(stack: ExitStack) -> int:
    return stack.enter_context(weight_memory())


def num_bytes_held(memory: int) -> int:
    """Pages that are taken, the log's first one left out."""
    return max(0, os.fstat(memory).st_blocks * 512 - PAGE)


def start_user(stack: ExitStack, memory: int) -> tuple[subprocess.Popen[str], str]:
    user = subprocess.Popen(
        [sys.executable, "-c", USER, str(memory), str(SIZE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[memory],
    )

    def end() -> None:
        user.kill()
        user.communicate(timeout=DEADLINE)

    stack.callback(end)
    assert user.stdout is not None
    return user, user.stdout.readline().strip()


def test_equal_weights_are_the_same_memory(memory: int) -> None:
    first, second = SharedWeights(memory), SharedWeights(memory)
    ours = first.share(weight(1))
    taken = num_bytes_held(memory)
    theirs = second.share(weight(1))
    assert ours == theirs == weight(1)
    assert (first.found_bytes, first.added_bytes) == (0, SIZE)
    assert (second.found_bytes, second.added_bytes) == (SIZE, 0)
    assert SIZE <= num_bytes_held(memory) == taken <= SIZE + 2 * PAGE


def test_weights_come_in_any_order_and_each_is_its_own(memory: int) -> None:
    first, second = SharedWeights(memory), SharedWeights(memory)
    seeds = range(1, 9)
    sizes = {seed: MIN_BYTES + 1000 * (seed % 3) for seed in seeds}
    ours = {seed: first.share(weight(seed, sizes[seed])) for seed in seeds}
    theirs = {seed: second.share(weight(seed, sizes[seed])) for seed in reversed(seeds)}
    for seed in seeds:
        assert ours[seed] == theirs[seed] == weight(seed, sizes[seed])
    assert second.added_bytes == 0


def test_a_weight_cannot_be_written_to(memory: int) -> None:
    shared = SharedWeights(memory).share(weight(1))
    assert shared is not None
    assert shared.readonly


def test_few_bytes_stay_where_they_are(memory: int) -> None:
    assert SharedWeights(memory).share(weight(1, MIN_BYTES - 1)) is None
    assert num_bytes_held(memory) == 0


def test_what_is_in_use_stays_after_loading(memory: int) -> None:
    first = SharedWeights(memory)
    ours = first.share(weight(1))
    first.close()
    SharedWeights(memory)
    assert ours == weight(1)
    assert num_bytes_held(memory) >= SIZE


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_weights_of_a_process_that_ended_are_given_back(
    stack: ExitStack, memory: int, number: int
) -> None:
    user, said = start_user(stack, memory)
    assert said == f"0 {SIZE}"
    other = SharedWeights(memory)
    kept = other.share(weight(2))
    user.send_signal(number)
    user.wait(DEADLINE)
    # Held by nobody now, but nobody has joined yet.
    assert num_bytes_held(memory) >= 2 * SIZE
    third = SharedWeights(memory)
    assert SIZE <= num_bytes_held(memory) <= SIZE + 4 * PAGE
    assert kept == weight(2)
    # Whoever saw it before finds that it is gone, and adds it anew.
    assert other.share(weight(1)) == weight(1)
    assert other.added_bytes == 2 * SIZE
    assert third.share(weight(1)) == weight(1)
    assert third.found_bytes == SIZE


def test_what_another_process_still_uses_is_not_given_back(stack: ExitStack, memory: int) -> None:
    first, _ = start_user(stack, memory)
    _, said = start_user(stack, memory)
    assert said == f"{SIZE} 0"
    first.kill()
    first.wait(DEADLINE)
    late = SharedWeights(memory)
    assert late.share(weight(1)) == weight(1)
    assert late.found_bytes == SIZE


def test_a_process_that_is_stopped_while_it_adds_keeps_nobody(memory: int) -> None:
    frozen = SharedWeights(memory)
    with frozen._locked(), pytest.raises(TimeoutError):
        SharedWeights(memory, timeout=0.05)
    patient = SharedWeights(memory, timeout=0.05)
    with frozen._locked():
        assert patient.share(weight(1)) is None
        assert patient.is_stuck
    # It asks once: a model has hundreds of weights.
    assert patient.share(weight(1)) is None


def test_a_weight_whose_adding_was_cut_off_is_not_there(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying, other = SharedWeights(memory), SharedWeights(memory)
    _cut_off(dying, monkeypatch)
    assert other.share(weight(2)) == weight(2)
    assert other.share(weight(1)) == weight(1)
    assert (other.found_bytes, other.added_bytes) == (0, 2 * SIZE)


def _cut_off(weights: SharedWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it end between the copy and the log's new end."""

    class DyingError(Exception):
        pass

    class End:
        unpack_from = shared_weights._END.unpack_from

        def pack_into(self, *_: object) -> None:
            raise DyingError

    with monkeypatch.context() as patch:
        patch.setattr(shared_weights, "_END", End())
        with pytest.raises(DyingError):
            weights.share(weight(1))
