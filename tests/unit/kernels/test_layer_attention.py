"""What is particular to a layer: sliding windows, soft caps, sinks, ALiBi, and all of them at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch

from pagemesh.kernels.paged_attention import (
    AttentionShape,
    LayerAttention,
    PagedAttention,
    PagedSequence,
)
from pagemesh.kernels.paged_attention.cpu import CpuPagedAttention
from pagemesh.kernels.paged_attention.cpu_parts import Part, Sight
from pagemesh.kernels.paged_attention.reference import ReferencePagedAttention
from tests.unit.kernels.dense_attention import dense_attention
from tests.unit.kernels.paged_cache import make_layer, make_shape

# As in test_paged_attention; with a soft cap the scores, of about 1, are rounded too.
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}

IMPLEMENTATIONS: list[Callable[[AttentionShape], PagedAttention]] = [
    ReferencePagedAttention,
    CpuPagedAttention,
]

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


@pytest.mark.parametrize("make", IMPLEMENTATIONS)
@pytest.mark.parametrize("features", LAYERS.values(), ids=LAYERS.keys())
@pytest.mark.parametrize("num_queries", [1, 7])
def test_it_is_what_the_definition_says(
    make: Callable[[AttentionShape], PagedAttention], features: LayerAttention, num_queries: int
) -> None:
    shape = make_shape()
    layer_kv, sequences, query = make_layer(shape, [(num_queries, 19)])
    expected = dense_attention(shape, sequences[0], layer_kv, query, features)
    output = make(shape).plan(sequences).attend(query, layer_kv, features)
    torch.testing.assert_close(output, expected, rtol=2e-6, atol=2e-6)


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


@pytest.mark.parametrize("make", IMPLEMENTATIONS)
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES.keys())
def test_what_no_window_shows_is_not_read(
    make: Callable[[AttentionShape], PagedAttention], lengths: Sequence[tuple[int, int]]
) -> None:
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


class CountingAttention(CpuPagedAttention):
    """Notes what is prepared."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        self.prepared: list[tuple[int | None, bool, bool]] = []

    def parts(self, sequences: Sequence[PagedSequence], sight: Sight) -> list[Part]:
        window, slopes, always_masked = sight
        self.prepared.append((window, slopes is not None, always_masked))
        return super().parts(sequences, sight)


def test_layers_that_see_the_same_share_what_a_step_prepares() -> None:
    shape = make_shape()
    attention = CountingAttention(shape)
    layers = [
        LayerAttention(0.3, 8),
        LayerAttention(0.3),
        LayerAttention(0.4, 8, sinks=SINKS),
        LayerAttention(0.3, 64),
        LayerAttention(0.3, soft_cap=2.0),
        LayerAttention(0.3, alibi_slopes=SLOPES),
        LayerAttention(0.5, 16),
        LayerAttention(0.5, alibi_slopes=SLOPES, sinks=SINKS),
        LayerAttention(0.3, 8),
    ]
    layer_kv, sequences, query = make_layer(shape, BATCHES["mixed"])
    for _ in range(2):
        attention.prepared.clear()
        plan = attention.plan(sequences)
        reference = ReferencePagedAttention(shape).plan(sequences)
        assert attention.prepared == []
        for features in layers:
            torch.testing.assert_close(
                plan.attend(query, layer_kv, features),
                reference.attend(query, layer_kv, features),
                rtol=2e-6,
                atol=2e-6,
            )
        # A window of 64 shows all contexts, like none.
        assert attention.prepared == [
            (8, False, False),
            (None, False, False),
            (None, False, True),
            (None, True, False),
            (16, False, False),
        ]


def test_a_window_gathers_only_the_blocks_that_show() -> None:
    shape = make_shape()
    layer_kv, sequences, query = make_layer(shape, [(1, 59), (1, 60), (4, 58)])
    attention = CpuPagedAttention(shape)
    attention.plan(sequences).attend(query, layer_kv, LayerAttention(0.3, 8))
    # 2 decodes see slots 51 to 59 in 2 blocks each; the chunk's first query sees 47 to 54, so that
    # the chunk needs slots 47 to 57 in 3 blocks.
    block_elements = shape.block_size * shape.num_kv_heads * shape.head_dim
    assert attention._buffer.numel() == 2 * 2 * 2 * block_elements
