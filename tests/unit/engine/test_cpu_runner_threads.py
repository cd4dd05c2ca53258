from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pagemesh.engine.cpu_runner import (
    MIN_SHARED_IN_ONE_CALL,
    MIN_SHARED_WEIGHTS,
    MIN_SHARED_WORK,
    StepThreads,
)


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_only_steps_with_enough_to_do_use_all_threads() -> None:
    threads = StepThreads(MIN_SHARED_WORK // 64)
    used = []
    for num_tokens in (1, 63, 64, 100, 2):
        threads.use(num_tokens)
        used.append(torch.get_num_threads())
    assert used == [1, 1, 4, 4, 1]


@pytest.mark.parametrize(
    ("num_weights", "used"), [(MIN_SHARED_WEIGHTS, 4), (MIN_SHARED_WEIGHTS - 1, 1)]
)
def test_a_large_layer_is_shared_even_for_one_token(num_weights: int, used: int) -> None:
    StepThreads(num_weights).use(1)
    assert torch.get_num_threads() == used


def test_threads_that_are_woken_once_share_less() -> None:
    threads = StepThreads(MIN_SHARED_IN_ONE_CALL // 4)
    used = []
    for num_tokens, in_one_call in ((3, True), (4, True), (4, False)):
        threads.use(num_tokens, in_one_call=in_one_call)
        used.append(torch.get_num_threads())
    assert used == [1, 4, 1]


def test_whoever_computes_next_finds_torch_as_it_was() -> None:
    threads = StepThreads(MIN_SHARED_WORK // 64)
    threads.use(1)
    assert torch.get_num_threads() == 1
    threads.leave()
    assert torch.get_num_threads() == 4
    threads.use(1)
    assert torch.get_num_threads() == 1
