"""What is particular to a layer: sliding windows, soft caps, sinks, ALiBi, and all of them at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from pagemesh.kernels.paged_attention import AttentionShape, LayerAttention, PagedSequence
from pagemesh.kernels.paged_attention.cpu import CpuPagedAttention
from pagemesh.kernels.paged_attention.reference import ReferencePagedAttention
from tests.unit.kernels.attention_backends import IMPLEMENTATIONS, Maker, tolerance_of
from tests.unit.kernels.dense_attention import dense_attention
from tests.unit.kernels.paged_cache import make_layer, make_shape

# As in test_paged_attention; with a soft cap the scores, of about 1, are rounded too.
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}

SINKS = torch.tensor([0.5, -2.0, 3.0, 0.0, 6.0, -30.0])
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625, 1.0, 0.03125])
# Blocks have 5 slots, contexts up to 60 tokens.
LAYERS = {
    "scale": LayerAttention(0.4),
    "window of one": LayerAttention(0.3, 1),
    "window of a block": LayerAttention(0.3, 5),
    "window of a block and a half": LayerAttention(0.3, 8),
    "window of some blocks": LayerAttention(0.3, 21),
    "window beyond all contexts": LayerAttention(0.3, 64),
    "soft cap": LayerAttention(0.3, soft_cap=1.5),
    "sinks": LayerAttention(0.3, sinks=SINKS),
    "ALiBi": LayerAttention(0.3, alibi_slopes=SLOPES),
    "window and soft cap": LayerAttention(0.3, 8, soft_cap=1.5),
    "window and sinks": LayerAttention(0.3, 8, sinks=SINKS),
    "window and ALiBi": LayerAttention(0.3, 8, alibi_slopes=SLOPES),
    "soft cap and sinks": LayerAttention(0.3, soft_cap=1.5, sinks=SINKS),
    "everything": LayerAttention(0.3, 8, 1.5, SINKS, SLOPES),
}
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


@pytest.mark.product(sample=14)
@pytest.mark.parametrize("make", IMPLEMENTATIONS)
@pytest.mark.parametrize("features", LAYERS.values(), ids=LAYERS.keys())
@pytest.mark.parametrize("num_queries", [1, 7])
def test_it_is_what_the_definition_says(
    make: Maker, features: LayerAttention, num_queries: int
) -> None:
    shape = make_shape()
    layer_kv, sequences, query = make_layer(shape, [(num_queries, 19)])
    expected = dense_attention(shape, sequences[0], layer_kv, query, features)
    output = make(shape).plan(sequences).attend(query, layer_kv, features)
    tolerance = tolerance_of(make)
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)


WITHOUT_SLOPES = {name: layer for name, layer in LAYERS.items() if layer.alibi_slopes is None}


@pytest.mark.product(sample=12)
@pytest.mark.parametrize("make", IMPLEMENTATIONS)
@pytest.mark.parametrize("features", WITHOUT_SLOPES.values(), ids=WITHOUT_SLOPES.keys())
@pytest.mark.parametrize("num_queries", [1, 7, 19])
def test_without_causality_it_is_what_the_definition_says(
    make: Maker, features: LayerAttention, num_queries: int
) -> None:
    shape = make_shape(causal=False)
    layer_kv, sequences, query = make_layer(shape, [(num_queries, 19)])
    expected = dense_attention(shape, sequences[0], layer_kv, query, features)
    output = make(shape).plan(sequences).attend(query, layer_kv, features)
    tolerance = tolerance_of(make)
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.product(sample=12)
@pytest.mark.parametrize("features", WITHOUT_SLOPES.values(), ids=WITHOUT_SLOPES.keys())
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES.keys())
def test_without_causality_the_cpu_agrees_with_the_reference(
    features: LayerAttention, lengths: Sequence[tuple[int, int]]
) -> None:
    assert_agreement(features, lengths, make_shape(6, 6, 16, causal=False))


@pytest.mark.product(sample=30)
@pytest.mark.parametrize("features", LAYERS.values(), ids=LAYERS.keys())
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("heads", [(6, 2, 24), (6, 6, 16), (6, 1, 40)], ids=["GQA", "MHA", "MQA"])
def test_the_cpu_agrees_with_the_reference(
    features: LayerAttention, lengths: Sequence[tuple[int, int]], heads: tuple[int, int, int]
) -> None:
    assert_agreement(features, lengths, make_shape(*heads))


@pytest.mark.parametrize("features", LAYERS.values(), ids=LAYERS.keys())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_cpu_agrees_with_the_reference_in_short_types(
    features: LayerAttention, dtype: torch.dtype
) -> None:
    for lengths in (BATCHES["mixed"], BATCHES["similar decodes"], BATCHES["whole prompt"]):
        assert_agreement(features, lengths, make_shape(dtype=dtype))


def assert_agreement(
    features: LayerAttention, lengths: Sequence[tuple[int, int]], shape: AttentionShape
) -> None:
    layer_kv, sequences, query = make_layer(shape, lengths)
    expected = ReferencePagedAttention(shape).plan(sequences).attend(query, layer_kv, features)
    output = CpuPagedAttention(shape).plan(sequences).attend(query, layer_kv, features)
    assert output.is_contiguous()
    assert output.dtype == shape.dtype
    tolerance = TOLERANCES[shape.dtype]
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.product(sample=6)
@pytest.mark.parametrize("make", IMPLEMENTATIONS)
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES.keys())
def test_what_no_window_shows_is_not_read(make: Maker, lengths: Sequence[tuple[int, int]]) -> None:
    shape, features = make_shape(), LAYERS["window and sinks"]
    layer_kv, sequences, query = make_layer(shape, lengths)
    expected = make(shape).plan(sequences).attend(query, layer_kv, features)
    for sequence in sequences:
        num_passed = sequence.context_len - sequence.num_queries + 1 - 8
        for position in range(num_passed):
            block = sequence.block_ids[position // shape.block_size]
            layer_kv[:, block, position % shape.block_size] = math.nan
    assert torch.isfinite(expected).all()
    assert torch.equal(make(shape).plan(sequences).attend(query, layer_kv, features), expected)


def test_a_plan_serves_layers_of_all_kinds() -> None:
    shape = make_shape()
    layer_kv, sequences, query = make_layer(shape, BATCHES["mixed"])
    plan = CpuPagedAttention(shape).plan(sequences)
    reference = ReferencePagedAttention(shape).plan(sequences)
    for features in (*LAYERS.values(), *LAYERS.values()):
        torch.testing.assert_close(
            plan.attend(query, layer_kv, features),
            reference.attend(query, layer_kv, features),
            rtol=2e-6,
            atol=2e-6,
        )


@pytest.mark.parametrize("features", LAYERS.values(), ids=LAYERS.keys())
def test_a_query_gives_the_same_bits_in_a_chunk_of_any_size(features: LayerAttention) -> None:
    shape = make_shape()
    layer_kv, (whole,), query = make_layer(shape, [(60, 60)])
    attention = CpuPagedAttention(shape)
    expected = attention.plan([whole]).attend(query, layer_kv, features)
    for size in (1, 7, 33):
        for begin in range(0, 60, size):
            end = min(60, begin + size)
            chunk = PagedSequence(end - begin, end, whole.block_ids)
            output = attention.plan([chunk]).attend(query[begin:end], layer_kv, features)
            assert torch.equal(output, expected[begin:end])
