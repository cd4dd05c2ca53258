from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from pagemesh.kernels.dispatch import using
from pagemesh.kernels.jit.cpu_isa import CpuIsa, using_isa
from pagemesh.kernels.paged_attention import (
    LayerAttention,
    PagedSequence,
    make_paged_attention,
)
from pagemesh.kernels.paged_attention.cpu import CpuPagedAttention
from pagemesh.kernels.paged_attention.cuda import CudaPagedAttention
from pagemesh.kernels.paged_attention.reference import ReferencePagedAttention
from tests.support.cpu_isas import isas
from tests.unit.kernels.attention_backends import IMPLEMENTATIONS, Maker, tolerance_of
from tests.unit.kernels.dense_attention import dense_attention
from tests.unit.kernels.paged_cache import make_layer, make_shape

# float32: sums of up to 60 products in another order. bfloat16 and float16: 8 and 11 bits of the
# inputs' precision, once for the weights and once for the result.
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}

PLAIN = LayerAttention(scale=0.25)


@pytest.fixture(autouse=True)
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory that is not initialised shows."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.product(sample=6)
@pytest.mark.parametrize("make", IMPLEMENTATIONS)
@pytest.mark.parametrize("num_queries", [1, 7])
@pytest.mark.parametrize("causal", [True, False])
def test_it_is_softmax_attention(make: Maker, num_queries: int, causal: bool) -> None:
    shape = make_shape(causal=causal)
    layer_kv, sequences, query = make_layer(shape, [(num_queries, 13)])
    expected = dense_attention(shape, sequences[0], layer_kv, query, PLAIN)
    output = make(shape).plan(sequences).attend(query, layer_kv, PLAIN)
    tolerance = tolerance_of(make)
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)


BATCHES = {
    "one token": [(1, 1)],
    "one decode": [(1, 23)],
    "equal decodes": [(1, 17)] * 4,
    "similar decodes": [(1, 18), (1, 19), (1, 20), (1, 21), (1, 22)],
    "scattered decodes": [(1, 60), (1, 1), (1, 33), (1, 2), (1, 5), (1, 6)],
    "whole prompt": [(23, 23)],
    "chunk at an offset": [(4, 23)],
    "chunks": [(5, 5), (2, 31), (16, 20)],
    "mixed": [(1, 3), (1, 11), (1, 12), (1, 40), (9, 9), (3, 30), (1, 8)],
}


@pytest.mark.product(sample=20)
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("heads", [(6, 2, 24), (4, 4, 16), (5, 1, 40)], ids=["GQA", "MHA", "MQA"])
@pytest.mark.parametrize("causal", [True, False])
def test_the_cpu_agrees_with_the_reference(
    lengths: list[tuple[int, int]],
    dtype: torch.dtype,
    heads: tuple[int, int, int],
    causal: bool,
) -> None:
    shape = make_shape(*heads, dtype=dtype, causal=causal)
    layer_kv, sequences, query = make_layer(shape, lengths)
    expected = ReferencePagedAttention(shape).plan(sequences).attend(query, layer_kv, PLAIN)
    output = CpuPagedAttention(shape).plan(sequences).attend(query, layer_kv, PLAIN)
    assert output.is_contiguous()
    assert output.dtype == dtype
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)


def test_a_plan_serves_every_layer_and_strided_queries() -> None:
    shape = make_shape()
    first, second = (make_layer(shape, BATCHES["mixed"], seed) for seed in (3, 4))
    sequences = first.sequences
    plan = CpuPagedAttention(shape).plan(sequences)
    reference = ReferencePagedAttention(shape).plan(sequences)
    other_kv = first.layer_kv.flip(-1).contiguous()
    for layer_kv, query in [
        (first.layer_kv, first.query),
        (other_kv, torch.cat([second.query, second.query], dim=1)[:, : shape.num_heads]),
    ]:
        torch.testing.assert_close(
            plan.attend(query, layer_kv, PLAIN),
            reference.attend(query, layer_kv, PLAIN),
            rtol=2e-6,
            atol=2e-6,
        )


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("heads", [(6, 2, 24), (5, 1, 40)], ids=["GQA", "MQA"])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_query_gives_the_same_bits_in_a_chunk_of_any_size_and_in_any_batch(
    dtype: torch.dtype, heads: tuple[int, int, int], num_threads: int
) -> None:
    shape = make_shape(*heads, dtype=dtype)
    layer_kv, (whole, other), query = make_layer(shape, [(60, 60), (1, 33)])
    attention = CpuPagedAttention(shape)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        expected = attention.plan([whole, other]).attend(query, layer_kv, PLAIN)
        for size in (1, 2, 7, 16, 59):
            for begin in range(0, 60, size):
                end = min(60, begin + size)
                chunk = PagedSequence(end - begin, end, whole.block_ids)
                batch = torch.cat([query[begin:end], query[60:]])
                for plan, rows in (([chunk], batch[:-1]), ([chunk, other], batch)):
                    output = attention.plan(plan).attend(rows, layer_kv, PLAIN)
                    assert torch.equal(output[: end - begin], expected[begin:end])
                    assert torch.equal(output[end - begin :], expected[60:][: len(plan) - 1])
    finally:
        torch.set_num_threads(threads_before)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_a_prompt_that_sees_all_of_itself_gives_the_same_bits_in_any_batch(
    dtype: torch.dtype,
) -> None:
    lengths = [(60, 60), (1, 1), (33, 33), (59, 59)]
    shape = make_shape(4, 4, 16, dtype=dtype, causal=False)
    layer_kv, sequences, query = make_layer(shape, lengths)
    attention = CpuPagedAttention(shape)
    for features in (PLAIN, LayerAttention(scale=0.25, sliding_window=8)):
        together = attention.plan(sequences).attend(query, layer_kv, features)
        begin = 0
        for sequence in sequences:
            end = begin + sequence.num_queries
            alone = attention.plan([sequence]).attend(query[begin:end], layer_kv, features)
            assert torch.equal(alone, together[begin:end])
            begin = end


@pytest.mark.parametrize("make", IMPLEMENTATIONS)
def test_slopes_make_no_sense_without_causality(make: Maker) -> None:
    shape, features = make_shape(causal=False), LayerAttention(0.25, alibi_slopes=torch.ones(6))
    layer_kv, sequences, query = make_layer(shape, [(2, 7)])
    with pytest.raises(ValueError, match="has no slopes"):
        make(shape).plan(sequences).attend(query, layer_kv, features)


def test_block_size_does_not_change_a_bit() -> None:
    shape = make_shape(block_size=5)
    layer_kv, (sequence,), query = make_layer(shape, [(9, 60)])
    expected = CpuPagedAttention(shape).plan([sequence]).attend(query, layer_kv, PLAIN)
    for block_size in (1, 16):
        other = shape._replace(block_size=block_size, num_blocks=100)
        other_kv = torch.full((2, 100, block_size, 2, 24), math.nan)
        table = list(range(99, -1, -1))
        for position in range(60):
            slot = layer_kv[:, sequence.block_ids[position // 5], position % 5]
            other_kv[:, table[position // block_size], position % block_size] = slot
        plan = CpuPagedAttention(other).plan([PagedSequence(9, 60, table)])
        assert torch.equal(plan.attend(query, other_kv, PLAIN), expected)


def test_queries_may_lie_in_any_order() -> None:
    shape = make_shape()
    layer_kv, sequences, query = make_layer(shape, BATCHES["mixed"])
    plan = CpuPagedAttention(shape).plan(sequences)
    scattered = query.transpose(0, 2).contiguous().transpose(0, 2)
    assert torch.equal(plan.attend(scattered, layer_kv, PLAIN), plan.attend(query, layer_kv, PLAIN))


@pytest.mark.parametrize("make", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "sequence",
    [PagedSequence(0, 3, [0]), PagedSequence(4, 3, [0]), PagedSequence(1, 6, [0])],
    ids=["no query", "more queries than tokens", "table too short"],
)
def test_sequences_that_make_no_sense_are_refused(make: Maker, sequence: PagedSequence) -> None:
    with pytest.raises(ValueError, match="do not fit 1 blocks of 5"):
        make(make_shape()).plan([sequence])


@pytest.mark.parametrize("make", IMPLEMENTATIONS)
def test_a_query_that_does_not_match_the_plan_is_refused(make: Maker) -> None:
    shape = make_shape()
    layer_kv, sequences, query = make_layer(shape, [(2, 7)])
    plan = make(shape).plan(sequences)
    for wrong in (query[:1], query[:, :3], query.bfloat16()):
        with pytest.raises(ValueError, match="but the plan is for"):
            plan.attend(wrong, layer_kv, PLAIN)


def test_dispatch_goes_by_the_device() -> None:
    assert isinstance(make_paged_attention(make_shape(), torch.device("cpu")), CpuPagedAttention)
    with using("cuda"):
        attention = make_paged_attention(make_shape(), torch.device("cpu"))
    assert isinstance(attention, CudaPagedAttention)
    with pytest.raises(ValueError, match="no kernels for meta devices"):
        make_paged_attention(make_shape(), torch.device("meta"))


FEATURES = {
    "plain": PLAIN,
    "window": LayerAttention(scale=0.25, sliding_window=70),
    "cap": LayerAttention(scale=0.25, soft_cap=3.0),
    "sinks": LayerAttention(scale=0.25, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -2.0])),
    "slopes": LayerAttention(scale=0.25, alibi_slopes=torch.linspace(0.02, 0.5, 6)),
}
# Widths of 32, 64, 128 and 160; items of whole and of broken groups of rows; tiles of 16, 32 and 64 keys.
HEADS = [(6, 2, 24), (6, 1, 64), (6, 6, 128), (6, 2, 136)]


@pytest.mark.product(most=4)
@isas
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES.keys())
def test_every_class_of_processors_gives_the_same_but_for_roundings(
    isa: CpuIsa, heads: tuple[int, int, int], features: LayerAttention
) -> None:
    shape = make_shape(*heads, dtype=torch.bfloat16, num_blocks=100)
    layer_kv, sequences, query = make_layer(shape, [(1, 3), (1, 150), (29, 140), (9, 9)])
    expected = ReferencePagedAttention(shape).plan(sequences).attend(query, layer_kv, features)
    with using_isa(isa):
        output = CpuPagedAttention(shape).plan(sequences).attend(query, layer_kv, features)
    # Nothing in between is rounded to bfloat16.
    torch.testing.assert_close(output, expected, rtol=8e-3, atol=8e-3)


@pytest.mark.product(most=4)
@isas
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_every_class_gives_a_query_the_same_bits_in_any_company(
    isa: CpuIsa, heads: tuple[int, int, int], causal: bool
) -> None:
    shape = make_shape(*heads, dtype=torch.bfloat16, num_blocks=100, causal=causal)
    layer_kv, sequences, query = make_layer(shape, [(150, 150), (1, 33)])
    whole, other = sequences
    chunks = [(0, 150)]
    if causal:
        chunks += [(0, 1), (15, 16), (100, 131), (131, 150)]
    with using_isa(isa):
        attention = CpuPagedAttention(shape)
        for features in (PLAIN, FEATURES["window"]):
            expected = attention.plan(sequences).attend(query, layer_kv, features)
            assert torch.equal(
                attention.plan([other]).attend(query[150:], layer_kv, features), expected[150:]
            )
            for begin, end in chunks:
                chunk = PagedSequence(end - begin, end, whole.block_ids)
                output = attention.plan([chunk]).attend(query[begin:end], layer_kv, features)
                assert torch.equal(output, expected[begin:end])


def test_what_is_not_a_number_is_not_hidden() -> None:
    shape = make_shape()
    layer_kv, (sequence,), query = make_layer(shape, [(1, 23)])
    attention = CpuPagedAttention(shape)
    layer_kv[0, sequence.block_ids[1], 2] = math.nan
    assert attention.plan([sequence]).attend(query, layer_kv, PLAIN).isnan().all()
