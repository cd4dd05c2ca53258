"""Keys and values in eight bits on the CPU: how they are rounded, stored and read back."""

from __future__ import annotations

import math

import pytest
import torch

from pagemesh.kernels.jit.cpu_isa import CpuIsa, using_isa
from pagemesh.kernels.kv_scales import FP8, KvScales, from_int8, to_int8
from pagemesh.kernels.paged_attention import AttentionShape, LayerAttention, PagedSequence
from pagemesh.kernels.paged_attention.cpu import CpuPagedAttention
from pagemesh.kernels.paged_attention.reference import ReferencePagedAttention
from pagemesh.kernels.write_kv.cpu import CpuKvWriter
from pagemesh.kernels.write_kv.interface import ReferenceKvWriter
from tests.support.cpu_isas import isas
from tests.unit.kernels.paged_cache import make_layer, make_shape

SCALES = KvScales(torch.tensor([0.5, 3.0]), torch.tensor([0.7, 0.25]))
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
STORED = [FP8, torch.int8]
# float32: sums of products in another order, of numbers up to 8. bfloat16: the weights are rounded to it.
TOLERANCES = {torch.float32: 4e-6, torch.bfloat16: 1.6e-2, torch.float16: 4e-3}


def features_of(stored: torch.dtype, **changes: object) -> LayerAttention:
    scales = SCALES if stored == FP8 else None
    return LayerAttention(0.25, kv_scales=scales, **changes)  # type: ignore[arg-type]


def written(
    writer: CpuKvWriter | ReferenceKvWriter, heads: torch.Tensor, stored: torch.dtype
) -> torch.Tensor:
    """A layer of 3 blocks of 5 slots and 2 kv heads, as floats of what was stored; and in int8 of the scales."""
    head_dim = heads.shape[2]
    row = head_dim + 4 if stored == torch.int8 else head_dim
    layer_kv = torch.zeros(2, 3, 5, 2, row, dtype=stored)
    slots = torch.arange(14, 14 - len(heads), -1)
    scales = SCALES if stored == FP8 else None
    writer.write(layer_kv, heads, writer.slot_mapping(slots, 15), scales)
    if stored == FP8:
        return layer_kv.float()
    numbers, found = layer_kv[..., :head_dim], layer_kv[..., head_dim:]
    return torch.cat([numbers.float(), found.clone().view(torch.float32)], dim=-1)


@isas
@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [6, 32, 88])
def test_what_is_stored_is_exactly_the_reference(
    isa: CpuIsa, stored: torch.dtype, dtype: torch.dtype, head_dim: int
) -> None:
    # Of all sizes, with some that overflow and some below the least of FP8, and what is not finite.
    heads = torch.randn(9, 7, head_dim) * 4.0 ** torch.randint(-8, 6, (9, 7, 1))
    heads[0, 3, 0], heads[1, 4, 5], heads[2, 5, 1] = math.nan, math.inf, -math.inf
    heads[3] = 0.0
    heads[4, 3:, ::2] = -0.0
    with using_isa(isa):
        found = written(CpuKvWriter(), heads.to(dtype), stored)
    expected = written(ReferenceKvWriter(), heads.to(dtype), stored)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@isas
def test_every_number_in_fp8_and_between_two_is_rounded_as_torch_does(isa: CpuIsa) -> None:
    codes = torch.arange(256).to(torch.uint8).view(FP8).float()
    finite = codes[codes.isfinite()].sort().values
    middles = (finite[1:] + finite[:-1]) / 2
    numbers = torch.cat([finite, middles, middles.nextafter(finite[1:]), torch.tensor([1e-30])])
    numbers = torch.cat([numbers, numbers.new_zeros(-len(numbers) % 5)]).view(1, 1, -1)
    heads = numbers.expand(1, 2, -1).contiguous()
    layer_kv = torch.zeros(2, 1, 1, 1, numbers.shape[2], dtype=FP8)
    one = KvScales(torch.ones(1), torch.ones(1))
    with using_isa(isa):
        writer = CpuKvWriter()
        writer.write(layer_kv, heads, writer.slot_mapping(torch.tensor([0]), 1), one)
    expected = numbers.flatten().to(FP8).view(torch.uint8)
    assert torch.equal(layer_kv[0].view(torch.uint8).flatten(), expected)


@isas
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_number_in_fp8_is_read_exactly(isa: CpuIsa, dtype: torch.dtype) -> None:
    # A value attended to alone is the result.
    codes = torch.arange(256).to(torch.uint8).view(FP8)
    shape = AttentionShape(1, 1, 256, 1, 1, dtype, kv_dtype=FP8)
    layer_kv = torch.stack([torch.zeros_like(codes), codes]).view(2, 1, 1, 1, 256)
    query = torch.ones(1, 1, 256, dtype=dtype)
    features = LayerAttention(1.0, kv_scales=KvScales(torch.ones(1), torch.ones(1)))
    with using_isa(isa):
        plan = CpuPagedAttention(shape).plan([PagedSequence(1, 1, [0])])
        output = plan.attend(query, layer_kv, features).flatten().float()
    torch.testing.assert_close(output, codes.float(), rtol=0, atol=0, equal_nan=True)


def test_int8_is_symmetric_with_a_scale_for_each_head_of_a_token() -> None:
    heads = torch.tensor([[254.0, -127.0, 1.0, 3.0], [0.0, -0.5, 0.25, 0.0]])
    rows = to_int8(heads)
    assert rows.shape == (2, 8)
    assert rows[0, :4].tolist() == [127, -64, 0, 2]  # ties to even
    assert from_int8(rows)[0].tolist() == [254.0, -128.0, 0.0, 4.0]
    assert rows[1, :4].tolist() == [0, -127, 64, 0]
    assert from_int8(to_int8(torch.tensor([1e-40, 0.0]))).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_in_int8_what_is_not_finite_is_not_hidden(wrong: float) -> None:
    assert not from_int8(to_int8(torch.tensor([1.0, wrong, 2.0]))).isfinite().any()


@pytest.mark.product(most=6)
@isas
@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
# Widths of 32, 64, 128 and 160; items of whole and of broken groups of rows; tiles of 16, 32 and 64 keys.
@pytest.mark.parametrize("heads", [(6, 2, 24), (6, 2, 64), (2, 2, 128), (6, 2, 136)], ids=str)
@pytest.mark.parametrize("soft_cap", [None, 3.0])
def test_attention_agrees_with_the_reference(
    isa: CpuIsa,
    stored: torch.dtype,
    dtype: torch.dtype,
    heads: tuple[int, int, int],
    soft_cap: float | None,
) -> None:
    shape = make_shape(*heads, dtype=dtype, kv_dtype=stored, num_blocks=100)
    layer_kv, sequences, query = make_layer(shape, [(1, 3), (1, 150), (29, 140), (9, 9)])
    features = features_of(stored, soft_cap=soft_cap)
    expected = ReferencePagedAttention(shape).plan(sequences).attend(query, layer_kv, features)
    with using_isa(isa):
        output = CpuPagedAttention(shape).plan(sequences).attend(query, layer_kv, features)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.product(most=6)
@isas
@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [(6, 2, 24), (2, 2, 136)], ids=str)
def test_a_query_gives_the_same_bits_in_any_company(
    isa: CpuIsa, stored: torch.dtype, dtype: torch.dtype, heads: tuple[int, int, int]
) -> None:
    shape = make_shape(*heads, dtype=dtype, kv_dtype=stored, num_blocks=100)
    layer_kv, sequences, query = make_layer(shape, [(150, 150), (1, 33)])
    whole, other = sequences
    with using_isa(isa):
        attention = CpuPagedAttention(shape)
        for features in (features_of(stored), features_of(stored, sliding_window=70)):
            expected = attention.plan(sequences).attend(query, layer_kv, features)
            assert torch.equal(
                attention.plan([other]).attend(query[150:], layer_kv, features), expected[150:]
            )
            for begin, end in [(0, 150), (0, 1), (15, 16), (100, 131), (131, 150)]:
                chunk = PagedSequence(end - begin, end, whole.block_ids)
                output = attention.plan([chunk]).attend(query[begin:end], layer_kv, features)
                assert torch.equal(output, expected[begin:end])


@pytest.mark.parametrize("stored", STORED, ids=str)
def test_what_is_not_a_number_is_not_hidden(stored: torch.dtype) -> None:
    shape = make_shape(6, 2, 24, kv_dtype=stored)
    layer_kv, (sequence,), query = make_layer(shape, [(1, 23)])
    nothing = torch.full((2, 24), math.nan)
    row = to_int8(nothing) if stored == torch.int8 else nothing.to(FP8)
    layer_kv[0, sequence.block_ids[1], 2] = row
    output = CpuPagedAttention(shape).plan([sequence]).attend(query, layer_kv, features_of(stored))
    assert output.isnan().all()
