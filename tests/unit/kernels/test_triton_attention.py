"""What is particular to attention in Triton: segments, programs that share rows, and work in place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from triton.runtime import interpreter

from pagemesh.kernels.launch import Launch, is_interpreted, noting
from pagemesh.kernels.paged_attention import (
    AttentionShape,
    Capacity,
    LayerAttention,
    PagedSequence,
    cuda_kernels,
)
from pagemesh.kernels.paged_attention.cuda import CudaPagedAttention
from pagemesh.kernels.paged_attention.cuda_kernels import tiling_of
from pagemesh.kernels.paged_attention.kernel import attention_kernel
from pagemesh.kernels.paged_attention.reference import ReferencePagedAttention
from pagemesh.kernels.paged_attention.work import ITEM, MERGE
from pagemesh.kernels.target import TARGETS, Target, arrival_counters, playing
from tests.unit.kernels.attention_backends import SMALL_TILES, make_triton, tolerance_of
from tests.unit.kernels.paged_cache import make_layer, make_shape

pytestmark = pytest.mark.costly

TOLERANCES = {torch.bfloat16: 3e-2, torch.float16: 4e-3}
TOLERANCE = tolerance_of(make_triton)
"""Of float32."""
PLAIN = LayerAttention(scale=0.25)
SINKS = torch.tensor([0.5, -2.0, 6.0])
SLOPES = torch.tensor([0.5, 0.25, 1.0])
LAYERS = {
    "plain": PLAIN,
    "window": LayerAttention(0.3, 21),
    "soft cap and sinks": LayerAttention(0.3, soft_cap=1.5, sinks=SINKS),
    "everything": LayerAttention(0.3, 8, 1.5, SINKS, SLOPES),
}
MIXED = [(1, 3), (1, 33), (4, 4), (7, 45), (1, 70)]

# Segments have 32 keys: the first shares hardly any rows, the last cuts wherever it can.
FEW_PROGRAMS = Target(90, 1, 232_448)
SOME_PROGRAMS = Target(90, 2, 232_448)
MANY_PROGRAMS = Target(90, 50, 232_448)


@pytest.fixture(autouse=True)
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def ordered_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter multiplies as tensor cores do, each row alike; the library that it asks does not."""

    def dot(builder: object, a: Any, b: Any, sums: Any, *precision: object) -> object:
        products = a.data[:, :, None] * b.data[None]
        return interpreter.TensorHandle(products.sum(axis=1) + sums.data, sums.dtype.scalar)

    if is_interpreted():
        monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


def shape_of(**changes: object) -> AttentionShape:
    return make_shape(3, 1, 24, **changes)


@pytest.mark.parametrize("features", LAYERS.values(), ids=LAYERS.keys())
@pytest.mark.parametrize("target", [FEW_PROGRAMS, MANY_PROGRAMS], ids=["whole", "shared"])
def test_a_mixed_batch_agrees_with_the_reference(features: LayerAttention, target: Target) -> None:
    shape = shape_of()
    layer_kv, sequences, query = make_layer(shape, MIXED)
    expected = ReferencePagedAttention(shape).plan(sequences).attend(query, layer_kv, features)
    with playing(target):
        output = make_triton(shape).plan(sequences).attend(query, layer_kv, features)
    assert output.is_contiguous()
    torch.testing.assert_close(output, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", [16, 40])
def test_short_types_agree_with_the_reference(dtype: torch.dtype, head_dim: int) -> None:
    shape = make_shape(2, 1, head_dim, dtype=dtype)
    layer_kv, sequences, query = make_layer(shape, [(1, 33), (5, 9)])
    expected = ReferencePagedAttention(shape).plan(sequences).attend(query, layer_kv, PLAIN)
    output = make_triton(shape).plan(sequences).attend(query, layer_kv, PLAIN)
    assert output.dtype == dtype
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("block_size", [1, 5, 16])
@pytest.mark.parametrize("window", [None, 6])
def test_a_prompt_that_sees_all_of_itself(block_size: int, window: int | None) -> None:
    shape = shape_of(causal=False, block_size=block_size, num_blocks=110)
    features = LayerAttention(0.25, window)
    layer_kv, sequences, query = make_layer(shape, [(15, 35), (3, 3)])
    expected = ReferencePagedAttention(shape).plan(sequences).attend(query, layer_kv, features)
    with playing(FEW_PROGRAMS):
        output = make_triton(shape).plan(sequences).attend(query, layer_kv, features)
    torch.testing.assert_close(output, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.usefixtures("ordered_dots")
def test_a_program_may_leave_the_sums_of_several_segments() -> None:
    shape = shape_of()
    layer_kv, sequences, query = make_layer(shape, [(1, 256)])
    (launch,) = noted(SOME_PROGRAMS, shape, layer_kv, sequences, query)
    # Of 3 rows each: the first sums, then those of segments that begin at tiles 4, 6, 8, 10, 12 and 14.
    assert [item[7:] for item in table_of(launch, "items", len(ITEM))] == [
        [0, 4, -1, 0],
        [4, 8, 3, 0],
        [8, 12, 9, 0],
        [12, 16, 15, 0],
    ]
    outputs = []
    for target in (FEW_PROGRAMS, SOME_PROGRAMS):
        with playing(target):
            plan = make_triton(shape).plan(sequences)
        outputs.append(plan.attend(query, layer_kv, PLAIN))
    assert torch.equal(*outputs)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert not arrival_counters(device).any()


@pytest.mark.usefixtures("ordered_dots")
def test_rows_that_nobody_can_count_are_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = shape_of()
    layer_kv, sequences, query = make_layer(shape, [(1, 70)] * 3)
    with playing(MANY_PROGRAMS):
        expected = make_triton(shape).plan(sequences).attend(query, layer_kv, PLAIN)
        monkeypatch.setattr(cuda_kernels, "NUM_COUNTERS", 1)
        (launch,) = noted(MANY_PROGRAMS, shape, layer_kv, sequences, query)
        assert merges_of(launch) == [[0, 3, 3]]
        attention = make_triton(shape)
        plans = attention.plan(sequences), attention.make_reusable(Capacity(3, 60), [PLAIN])
        plans[1].refill(sequences)
        for plan in plans:
            assert torch.equal(plan.attend(query, layer_kv, PLAIN), expected)


@pytest.mark.product
@pytest.mark.usefixtures("ordered_dots")
@pytest.mark.parametrize("features", LAYERS.values(), ids=LAYERS.keys())
def test_a_query_gives_the_same_bits_wherever_it_is_computed(features: LayerAttention) -> None:
    shape = shape_of()
    layer_kv, (whole, other), query = make_layer(shape, [(70, 70), (1, 40)])
    with playing(FEW_PROGRAMS):
        expected = make_triton(shape).plan([whole]).attend(query[:70], layer_kv, features)
    for target in (FEW_PROGRAMS, MANY_PROGRAMS):
        with playing(target):
            attention = make_triton(shape)
        for begin, end in [(69, 70), (31, 33), (60, 66)]:
            chunk = PagedSequence(end - begin, end, whole.block_ids)
            batch = torch.cat([query[70:], query[begin:end]])
            output = attention.plan([other, chunk]).attend(batch, layer_kv, features)
            assert torch.equal(output[1:], expected[begin:end])


def test_programs_share_rows_of_a_decode_and_of_a_chunk() -> None:
    shape = shape_of()
    layer_kv, sequences, query = make_layer(shape, [(1, 70), (20, 70)])
    chunks, decodes = noted(MANY_PROGRAMS, shape, layer_kv, sequences, query)
    assert chunks.kernel == decodes.kernel == attention_kernel
    # A chunk's 60 rows are tiles of 32 and 28, whose last rows are at positions 60 and 69: each begins in
    # one program, and one or two others compute the later segments.
    assert merges_of(chunks) == [[0, 2, 2], [2 * 32, 3, 3]]
    assert merges_of(decodes) == [[2 * 32 + 3 * 28, 3, 3]]
    assert chunks.grid == (2 + 3,)
    assert decodes.grid == (3,)


def noted(
    target: Target,
    shape: AttentionShape,
    layer_kv: torch.Tensor,
    sequences: list[PagedSequence],
    query: torch.Tensor,
) -> list[Launch]:
    """What would be started with small tiles, which a GPU does not multiply."""
    with playing(target), noting() as launches:
        attention = CudaPagedAttention(shape, torch.device("cpu"), SMALL_TILES)
        attention.plan(sequences).attend(query, layer_kv, PLAIN)
    return launches


def table_of(launch: Launch, name: str, num_fields: int) -> list[list[int]]:
    values = launch.arguments[name]
    assert isinstance(values, torch.Tensor)
    rows: list[list[int]] = values.view(-1, num_fields).tolist()
    return rows


def merges_of(launch: Launch) -> list[list[int]]:
    return table_of(launch, "merges", len(MERGE))


def test_a_plan_serves_layers_of_all_kinds_and_strided_queries() -> None:
    shape = shape_of()
    layer_kv, sequences, query = make_layer(shape, [(1, 40), (7, 20)])
    attention, reference = make_triton(shape), ReferencePagedAttention(shape)
    fused = torch.cat([query, query], dim=1)
    scattered = query.transpose(0, 2).contiguous().transpose(0, 2)
    # The second plan is prepared for the layers that the first one met.
    for same in (fused[:, 3:], scattered):
        plan = attention.plan(sequences)
        for features in (LAYERS["plain"], LAYERS["window"], LAYERS["soft cap and sinks"]):
            expected = reference.plan(sequences).attend(query, layer_kv, features)
            output = plan.attend(same, layer_kv, features)
            torch.testing.assert_close(output, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_head_group_larger_than_a_tile_of_rows() -> None:
    shape = make_shape(37, 1, 16)
    layer_kv, sequences, query = make_layer(shape, [(1, 20)])
    expected = ReferencePagedAttention(shape).plan(sequences).attend(query, layer_kv, PLAIN)
    attention = make_triton(shape)
    output = attention.plan(sequences).attend(query, layer_kv, PLAIN)
    torch.testing.assert_close(output, expected, rtol=TOLERANCE, atol=TOLERANCE)
    reusable = attention.make_reusable(Capacity(1, 9), [PLAIN])
    reusable.refill(sequences)
    assert torch.equal(reusable.attend(query, layer_kv, PLAIN), output)


def test_what_is_not_a_number_is_not_hidden() -> None:
    shape = shape_of()
    layer_kv, (sequence,), query = make_layer(shape, [(1, 23)])
    layer_kv[0, sequence.block_ids[1], 2] = math.nan
    assert make_triton(shape).plan([sequence]).attend(query, layer_kv, PLAIN).isnan().all()


def places(launch: Launch) -> list[int]:
    """Where a start reads what to do."""
    names = {"programs", "items", "merges", "tables", "counters"}
    arguments = [value for name, value in launch.arguments.items() if name in names]
    return [value.data_ptr() for value in arguments if isinstance(value, torch.Tensor)]


def test_a_reusable_plan_always_starts_the_same_on_the_same_memory() -> None:
    shape = shape_of()
    layer_kv, sequences, _ = make_layer(shape, [(1, 70), (1, 5)])
    query = torch.zeros(4, 3, 24)
    with playing(MANY_PROGRAMS):
        attention = CudaPagedAttention(shape, torch.device("cpu"), SMALL_TILES)
    plan = attention.make_reusable(Capacity(4, 20), list(LAYERS.values()))
    starts = []
    for filled in ([], sequences, sequences[1:]):
        plan.refill(filled)
        with noting() as launches:
            for features in LAYERS.values():
                plan.attend(query, layer_kv, features)
        starts.append([(launch.grid, places(launch)) for launch in launches])
    assert starts[0] == starts[1] == starts[2]


def test_a_reusable_plan_refuses_a_window_that_it_was_not_made_for() -> None:
    shape = shape_of()
    plan = make_triton(shape).make_reusable(Capacity(1, 20), [PLAIN])
    with pytest.raises(ValueError, match="no layer of window 21"):
        plan.attend(torch.zeros(1, 3, 24), make_layer(shape, [(1, 1)]).layer_kv, LAYERS["window"])


@pytest.mark.parametrize("name", ["query", "KV"])
def test_tensors_of_another_device_are_refused(name: str) -> None:
    shape = shape_of()
    layer_kv, sequences, query = make_layer(shape, [(2, 7)])
    plan = CudaPagedAttention(shape, torch.device("cpu"), SMALL_TILES).plan(sequences)
    moved = {"query": query, "KV": layer_kv}
    moved[name] = moved[name].to("meta")
    with pytest.raises(ValueError, match=f"the {name} .* is on meta, but must be on cpu"):
        plan.attend(moved["query"], moved["KV"], PLAIN)


def test_old_gpus_keep_no_kv_in_eight_bits() -> None:
    shape = shape_of(kv_dtype=torch.float8_e4m3fn)
    with (
        playing(TARGETS[80]),
        pytest.raises(ValueError, match=r"capability 8\.9, this GPU has 8\.0"),
    ):
        CudaPagedAttention(shape, torch.device("cpu"))


@pytest.mark.parametrize("capability", TARGETS)
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, *TOLERANCES], ids=str)
def test_decodes_and_prompts_are_computed_by_the_same_instructions(
    capability: int, head_dim: int, dtype: torch.dtype
) -> None:
    tiling = tiling_of(make_shape(8, 2, head_dim, dtype=dtype), TARGETS[capability])
    # 16 rows of its own for each warp, so that no row's sum is spread over warps, or the same tiles.
    for tile in (tiling.few, tiling.many):
        assert tile == tiling.few or tile.num_rows == 16 * tile.num_warps
    assert tiling.few == tiling.many or tiling.few.num_rows == 16 * tiling.few.num_warps
    assert tiling.segment_keys % tiling.num_keys == 0
