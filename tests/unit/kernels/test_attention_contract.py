"""What every implementation of paged attention refuses, how its plans are reused, and KV in eight bits."""

from __future__ import annotations

import math

import pytest
import torch

from pagemesh.kernels.kv_scales import FP8, KvScales
from pagemesh.kernels.paged_attention import (
    AttentionShape,
    Capacity,
    LayerAttention,
    PagedSequence,
)
from pagemesh.kernels.paged_attention.reference import ReferencePagedAttention
from tests.unit.kernels.attention_backends import IMPLEMENTATIONS, Maker, make_triton, tolerance_of
from tests.unit.kernels.paged_cache import make_layer, make_shape

PLAIN = LayerAttention(scale=0.25)
TWO_HEADS = (2, 1, 16)

implementations = pytest.mark.parametrize("make", IMPLEMENTATIONS)


@implementations
@pytest.mark.parametrize(
    "changes",
    [{"num_heads": 5}, {"head_dim": 0}, {"block_size": 0}, {"num_kv_heads": 4}],
    ids=["heads", "head size", "block size", "kv heads"],
)
def test_shapes_that_make_no_attention_are_refused(make: Maker, changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="make no attention"):
        make(make_shape(**changes))  # type: ignore[arg-type]


@implementations
def test_kv_in_a_type_of_its_own_is_refused(make: Maker) -> None:
    with pytest.raises(ValueError, match=r"torch\.float32 do not fit .* in torch\.bfloat16"):
        make(make_shape(kv_dtype=torch.bfloat16))


@implementations
@pytest.mark.parametrize("block_id", [-1, 90])
def test_a_block_that_there_is_not_is_refused(make: Maker, block_id: int) -> None:
    with pytest.raises(ValueError, match=f"block {block_id} was named, but there are 90"):
        make(make_shape()).plan([PagedSequence(1, 7, [3, block_id])])


@implementations
def test_a_batch_without_sequences_is_refused(make: Maker) -> None:
    with pytest.raises(ValueError, match="no sequences"):
        make(make_shape()).plan([])


@implementations
def test_kv_of_another_shape_type_or_order_is_refused(make: Maker) -> None:
    shape = make_shape(*TWO_HEADS)
    layer_kv, sequences, query = make_layer(shape, [(1, 3)])
    plan = make(shape).plan(sequences)
    for wrong in (layer_kv[:, 1:], layer_kv.bfloat16(), layer_kv[..., :8]):
        with pytest.raises(
            ValueError, match=r"but the plan is for torch\.float32 \[2, 90, 5, 1, 16\]"
        ):
            plan.attend(query, wrong, PLAIN)
    with pytest.raises(
        ValueError, match=r"strides \[7200, 1, 1440, 1440, 90\], but must lie densely"
    ):
        plan.attend(query, layer_kv.movedim(1, -1).contiguous().movedim(-1, 1), PLAIN)


@implementations
@pytest.mark.parametrize(
    ("features", "message"),
    [
        (LayerAttention(0.0), "the scale is 0.0, but must be above 0"),
        (LayerAttention(math.nan), "the scale is nan"),
        (LayerAttention(0.1, 0), "the sliding window is 0"),
        (LayerAttention(0.1, soft_cap=-1.0), "the soft cap is -1.0"),
        (LayerAttention(0.1, sinks=torch.ones(3)), r"sinks are \[3\], but there are 2 heads"),
        (LayerAttention(0.1, alibi_slopes=torch.ones(2, 1)), r"slopes are \[2, 1\]"),
        (
            LayerAttention(0.1, kv_scales=KvScales(torch.ones(1), torch.ones(1))),
            "float32 have no scales",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_features_that_make_no_sense_are_refused(
    make: Maker, features: LayerAttention, message: str
) -> None:
    shape = make_shape(*TWO_HEADS)
    layer_kv, sequences, query = make_layer(shape, [(1, 3)])
    with pytest.raises(ValueError, match=message):
        make(shape).plan(sequences).attend(query, layer_kv, features)


@implementations
def test_a_reusable_plan_gives_what_a_new_one_gives(make: Maker) -> None:
    shape = make_shape(*TWO_HEADS)
    layer_kv, sequences, query = make_layer(shape, [(1, 40), (1, 3), (1, 1)])
    windowed = LayerAttention(0.25, 8)
    attention = make(shape)
    plan = attention.make_reusable(Capacity(3, 20), [PLAIN, windowed, PLAIN])
    for used in ([0, 1, 2], [1], [], [2, 0]):
        filled = [sequences[index] for index in used]
        plan.refill(filled)
        # Rows without a sequence have no query either.
        padded = torch.full_like(query, math.nan)
        padded[: len(used)] = query[used]
        for features in (PLAIN, windowed):
            output = plan.attend(padded, layer_kv, features)
            assert torch.equal(output[len(used) :], torch.zeros(3 - len(used), 2, 16))
            if filled:
                expected = attention.plan(filled).attend(query[used], layer_kv, features)
                assert torch.equal(output[: len(used)], expected)


@implementations
def test_a_reusable_plan_of_chunks_gives_what_a_new_one_gives(make: Maker) -> None:
    shape = make_shape(*TWO_HEADS)
    # Decodes, a chunk of few rows, one of some tiles, and a whole prompt; then whatever else is filled in.
    layer_kv, sequences, query = make_layer(shape, [(1, 40), (1, 3), (5, 33), (24, 50), (9, 9)])
    firsts = [0, 1, 2, 7, 31, 40]
    windowed = LayerAttention(0.25, 8)
    attention = make(shape)
    plan = attention.make_reusable(Capacity(5, 40, chunk_tokens=48), [PLAIN, windowed])
    for used in ([0, 1, 2, 3, 4], [3], [], [1], [0, 2, 4]):
        filled = [sequences[index] for index in used]
        rows = [row for index in used for row in range(firsts[index], firsts[index + 1])]
        plan.refill(filled)
        padded = torch.full((48, 2, 16), math.nan)
        padded[: len(rows)] = query[rows]
        for features in (PLAIN, windowed):
            output = plan.attend(padded, layer_kv, features)
            assert not output[len(rows) :].any()
            if filled:
                expected = attention.plan(filled).attend(query[rows], layer_kv, features)
                assert torch.equal(output[: len(rows)], expected)


@implementations
@pytest.mark.parametrize(
    "sequences",
    [
        [PagedSequence(1, 3, [0])] * 3,
        [PagedSequence(2, 3, [0])],
        [PagedSequence(1, 11, [0, 1, 2]), PagedSequence(1, 5, [0])],
    ],
    ids=["sequences", "queries", "blocks"],
)
def test_a_reusable_plan_refuses_what_it_has_no_room_for(
    make: Maker, sequences: list[PagedSequence]
) -> None:
    plan = make(make_shape()).make_reusable(Capacity(2, 3), [PLAIN])
    with pytest.raises(ValueError, match="do not fit a plan for 2 of 2, up to 1 each, over 3"):
        plan.refill(sequences)


@implementations
@pytest.mark.parametrize(
    "lengths", [[1, 1, 1], [6, 3], [9]], ids=["sequences", "queries", "one's queries"]
)
def test_a_reusable_plan_of_chunks_refuses_what_it_has_no_room_for(
    make: Maker, lengths: list[int]
) -> None:
    plan = make(make_shape()).make_reusable(Capacity(2, 30, chunk_tokens=8), [PLAIN])
    with pytest.raises(ValueError, match="do not fit a plan for 2 of 8, up to 8 each, over 30"):
        plan.refill([PagedSequence(length, 10, [0, 1]) for length in lengths])


def fp8_shape() -> AttentionShape:
    return make_shape(4, 2, 16, kv_dtype=FP8)


SCALES = KvScales(torch.tensor([0.5, 2.0]), torch.tensor([4.0, 0.25]))


@implementations
@pytest.mark.parametrize("soft_cap", [None, 1.5])
def test_kv_in_eight_bits_is_scaled_back(make: Maker, soft_cap: float | None) -> None:
    shape = make_shape(4, 2, 16)
    layer_kv, sequences, query = make_layer(shape, [(1, 40), (3, 7)])
    small = layer_kv.to(FP8)
    scaled = small.float() * torch.stack(SCALES)[:, None, None, :, None]
    expected = (
        ReferencePagedAttention(shape)
        .plan(sequences)
        .attend(query, scaled, LayerAttention(0.25, soft_cap=soft_cap))
    )
    features = LayerAttention(0.25, soft_cap=soft_cap, kv_scales=SCALES)
    output = make(fp8_shape()).plan(sequences).attend(query, small, features)
    tolerance = 2 * tolerance_of(make)
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)


@implementations
def test_kv_in_eight_bits_needs_scales(make: Maker) -> None:
    layer_kv, sequences, query = make_layer(make_shape(4, 2, 16), [(1, 3)])
    plan = make(fp8_shape()).plan(sequences)
    with pytest.raises(ValueError, match=r"torch\.float8_e4m3fn need scales \[2\]"):
        plan.attend(query, layer_kv.to(FP8), PLAIN)
    wrong = LayerAttention(0.25, kv_scales=KvScales(torch.ones(2), torch.ones(3)))
    with pytest.raises(ValueError, match=r"scales of values are torch\.float32 \[3\]"):
        plan.attend(query, layer_kv.to(FP8), wrong)


def test_int8_is_for_cpus() -> None:
    with pytest.raises(ValueError, match=r"in torch\.int8 are for CPUs"):
        make_triton(make_shape(kv_dtype=torch.int8))
