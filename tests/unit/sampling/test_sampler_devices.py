"""The sampler of a GPU against that of the CPU: the same tokens, and the host waits only where it reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pagemesh.kernels.dispatch import using
from pagemesh.kernels.sampling.cuda import CudaTokenChooser
from pagemesh.sampling import sampler
from pagemesh.sampling.plan import SampledRow, Samples
from tests.support.host_accelerator import HostAccelerator
from tests.support.tolerances import float32_tolerance
from tests.unit.sampling.sampled import (
    CPU,
    Allow,
    Refuse,
    accelerator_of,
    make_row,
    make_ruled_row,
    mixed_rows,
    sample_on,
    sampler_on,
)

pytestmark = pytest.mark.costly

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INF, NAN = math.inf, math.nan


def same(logits: torch.Tensor, rows: Sequence[SampledRow]) -> Samples:
    """What both executors choose."""
    with using("cuda"):
        samples = sample_on(DEVICE, logits, rows)
    expected = sample_on(CPU, logits, rows)
    assert {name: error.reason for name, error in samples.errors.items()} == {
        name: error.reason for name, error in expected.errors.items()
    }
    for token_id, other, row in zip(samples.token_ids, expected.token_ids, rows, strict=True):
        assert token_id == other or row.request_id in expected.errors
    assert samples.logprobs.keys() == expected.logprobs.keys()
    for name in samples.logprobs.keys() - expected.errors.keys():
        score, other_score = samples.logprobs[name], expected.logprobs[name]
        exact = ("token_id", "rank", "top_token_ids")
        assert [getattr(score, e) for e in exact] == [getattr(other_score, e) for e in exact]
        values = (score.logprob, *score.top_logprobs)
        others = (other_score.logprob, *other_score.top_logprobs)
        assert values == pytest.approx(others, abs=float32_tolerance(DEVICE))
    return samples


@pytest.fixture(
    params=[(64, 32), (64, 2048), (2048, 2048)], ids=["long list", "many chunks", "one chunk"]
)
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many tokens of a row a program looks at, and how many candidates at once."""
    size: int = request.param[0]
    list_block: int = request.param[1]

    def make(vocab_size: int, device: torch.device) -> CudaTokenChooser:
        return CudaTokenChooser(vocab_size, device, chunk=size, list_block=list_block)

    monkeypatch.setattr(sampler, "make_token_chooser", make)
    return size


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("scale", [0.02, 4.0], ids=["flat", "peaked"])
def test_rows_of_all_kinds_are_the_hosts(scale: float) -> None:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {},
        {"top_k": 3},
        {"top_k": 150, "top_p": 0.7},
        {"top_k": 301},
        {"top_k": -1, "min_p": 0.3},
        {"min_p": 0.2, "top_p": 0.8},
        {"top_k": 190, "min_p": 0.1, "top_p": 0.9},
        {"top_p": 1e-9},
        {"top_p": 0.999},
        {"min_p": 1.0},
        {"temperature": 1e-3},
        {"temperature": 1e-300, "top_p": 0.5},
        {"temperature": 1e300, "top_k": 9},
    ]
    rows = [make_row(i, seed=i, **params) for i, params in enumerate(kinds)]
    same(torch.randn(len(rows), 301) * scale, rows)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize(
    "params",
    [{"min_p": 0.2, "top_p": 0.5}, {"top_k": 30, "top_p": 0.5}],
    ids=["min-p and top-p", "top-k and top-p"],
)
def test_top_p_is_of_what_the_others_leave(params: dict[str, Any]) -> None:
    same((torch.randn(80) / 2).expand(20, 80), [make_row(i, seed=i, **params) for i in range(20)])


@pytest.mark.usefixtures("chunk")
def test_edited_rows_are_the_hosts() -> None:
    samples = same(torch.randn(14, 130) * 2, mixed_rows(14))
    assert len(samples.logprobs) == 6


@pytest.mark.usefixtures("chunk")
def test_histories_longer_than_a_block_of_entries() -> None:
    output = [token % 700 for token in range(0, 9000, 13)]
    params: dict[str, Any] = {"repetition_penalty": 1.3, "frequency_penalty": 0.1}
    rows = [make_ruled_row(i, output, (1, 2), temperature=0.0, **params) for i in range(2)]
    same(torch.randn(2, 701) * 0.1, rows)


@pytest.mark.filterwarnings("ignore:overflow encountered")  # by numpy, for the interpreter
@pytest.mark.parametrize("penalty", [1e-45, 3e38])
def test_extreme_penalties_leave_a_token(penalty: float) -> None:
    params: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": penalty}
    same(torch.tensor([[5.0, -5.0, 1.0]]), [make_ruled_row(0, [], **params)])


@pytest.mark.usefixtures("chunk")
def test_equal_logits_are_all_kept_and_drawn_in_order_of_ids() -> None:
    logits = torch.randint(0, 3, (8, 130)).float()
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0, "logprobs": 20},
        {"top_k": 5},
        {"top_p": 0.3},
    ]
    same(logits, [make_row(i, seed=1, **kinds[i % 3]) for i in range(8)])
    uniform = [make_row(i, seed=2, top_p=0.5) for i in range(4)]
    same(torch.zeros(4, 130), uniform)


def test_candidates_may_be_most_of_the_vocabulary() -> None:
    rows = [make_row(0, top_p=0.95), make_row(1, seed=3, top_k=2400, top_p=0.99)]
    same(torch.randn(2, 2601) * 0.05, rows)


def test_zeros_are_equal_whatever_their_sign() -> None:
    logits = torch.tensor([[-1.0, -0.0, 0.0, -0.0]])
    samples = same(logits, [make_row(temperature=0.0, logprobs=3)])
    assert samples.token_ids == [1]
    assert samples.logprobs["r0"].top_token_ids == (1, 2, 3)


@pytest.mark.usefixtures("chunk")
def test_impossible_tokens_are_never_chosen() -> None:
    logits = torch.full((4, 90), -INF)
    logits[:, [33, 70]] = torch.tensor([1.0, 1.5])
    kinds: list[dict[str, Any]] = [{}, {"top_k": 7}, {"top_p": 0.99}, {"temperature": 0.0}]
    rows = [make_row(i, seed=i, logprobs=5, **params) for i, params in enumerate(kinds)]
    assert set(same(logits, rows).token_ids) <= {33, 70}


@pytest.mark.usefixtures("chunk")
def test_rows_that_fail_leave_the_others_alone() -> None:
    logits = torch.randn(7, 70)
    logits[0, 69], logits[2, 40], logits[4] = NAN, INF, -INF
    forbidding = make_ruled_row(5, [], (3,), allowed_token_ids=(3,))
    rows = [make_row(i, seed=i, logprobs=2, top_p=0.9) for i in range(5)] + [
        forbidding,
        make_row(6),
    ]
    samples = same(logits, rows)
    assert {name: error.reason for name, error in samples.errors.items()} == {
        "r0": "LOGITS_NOT_FINITE",
        "r2": "LOGITS_NOT_FINITE",
        "r4": "LOGITS_NOT_FINITE",
        "r5": "NO_TOKEN_ALLOWED",
    }
    assert all(0 <= token_id < 70 for token_id in samples.token_ids)


def test_a_constraint_that_cannot_go_on_fails_its_own_row() -> None:
    rows = [
        make_row(0, (5,))._replace(constraint=Allow({5, 33})),
        make_row(1)._replace(constraint=Refuse(set())),
        make_ruled_row(2, [], allowed_token_ids=(1, 40))._replace(constraint=Allow({2, 40})),
    ]
    samples = same(torch.randn(3, 70), rows)
    assert (samples.token_ids[0], samples.token_ids[2]) == (33, 40)
    assert samples.errors["r1"].message == "too complex"


def test_seeds_and_positions_count_with_all_their_bits() -> None:
    numbers = [1, 1 << 31, 1 << 32, (1 << 63) - 1]
    rows = [make_row(n, seed=seed) for n in numbers for seed in (*numbers, 2**64 - 1)]
    assert len(set(same(torch.zeros(20, 997), rows).token_ids)) > 15


def test_rows_of_other_strides_and_what_lies_beside_them() -> None:
    wide = torch.full((4, 99), NAN)
    wide[:, 10:80] = torch.randn(4, 70)
    rows = [make_ruled_row(i, [3], presence_penalty=1.0, top_k=9, logprobs=1) for i in range(4)]
    accelerator = accelerator_of(DEVICE)
    with using("cuda"), accelerator.computing():
        logits = wide.to(DEVICE)[:, 10:80]
        before = logits.clone()
        samples = sampler_on(accelerator, 70).launch(logits, rows).read()
        assert torch.equal(logits, before)
    assert samples.errors == {}
    assert samples.token_ids == sample_on(CPU, wide[:, 10:80], rows).token_ids


def test_nobody_waits_before_the_tokens_are_read() -> None:
    accelerator = accelerator_of(DEVICE)
    rows = mixed_rows(7)
    logits = torch.randn(7, 60)
    with using("cuda"), accelerator.computing():
        tested = sampler_on(accelerator, 60)
        given, reversed_ = logits.to(DEVICE), logits.flip(0).to(DEVICE)
        with accelerator.refusing_waits():
            first = tested.launch(given, rows)
            second = tested.launch(reversed_, rows[::-1])
        if isinstance(accelerator, HostAccelerator):
            assert (accelerator.num_waits, accelerator.num_copies) == (0, 4)
        samples = first.read()
        assert second.read().token_ids == samples.token_ids[::-1]
        assert first.token_ids.tolist() == samples.token_ids
        assert first.token_ids.dtype == torch.int64
    assert samples.token_ids == sample_on(CPU, logits, rows).token_ids


def test_rows_that_are_all_greedy_need_no_plan_on_the_device() -> None:
    accelerator = accelerator_of(DEVICE)
    logits = torch.randn(9, 60)
    logits[3, 7] = NAN
    rows = [make_row(i, temperature=0.0) for i in range(9)]
    expected = sample_on(CPU, logits, rows)
    with using("cuda"), accelerator.computing():
        tested = sampler_on(accelerator, 60)
        for begin, end in ((0, 2), (0, 9), (4, 5), (2, 8)):
            with accelerator.refusing_waits():
                launched = tested.launch(logits[begin:end].to(DEVICE), rows[begin:end])
            samples = launched.read()
            for index in range(begin, end):
                failed = expected.errors.get(f"r{index}")
                assert (f"r{index}" in samples.errors) == (failed is not None)
                assert failed or samples.token_ids[index - begin] == expected.token_ids[index]
        if isinstance(accelerator, HostAccelerator):
            # What comes back.
            assert accelerator.num_copies == 4


def test_batches_of_any_size_follow_each_other() -> None:
    accelerator = accelerator_of(DEVICE)
    rows, logits = mixed_rows(9), torch.randn(9, 60)
    expected = sample_on(CPU, logits, rows).token_ids
    with using("cuda"), accelerator.computing():
        tested = sampler_on(accelerator, 60)
        for begin, end in ((0, 2), (0, 9), (4, 5), (2, 8)):
            launched = tested.launch(logits[begin:end].to(DEVICE), rows[begin:end])
            assert launched.read().token_ids == expected[begin:end]


def test_logits_of_another_vocabulary_are_refused() -> None:
    accelerator = accelerator_of(DEVICE)
    with using("cuda"), accelerator.computing():
        tested = sampler_on(accelerator, 60)
        with pytest.raises(ValueError, match=r"logits \[1, 61\] .* are not dense rows of 60"):
            tested.launch(torch.zeros(1, 61, device=DEVICE), [make_row()])
