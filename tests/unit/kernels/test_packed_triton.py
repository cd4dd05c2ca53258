"""Products with quantised weights in Triton: the bits of those with what the weights stand for, which stay packed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest
import torch

from pagemesh.kernels.expert_choice import Choices
from pagemesh.kernels.experts import Stack, make_experts
from pagemesh.kernels.linear import Dense, Gate, make_gated_linear, make_linear, make_lookup
from pagemesh.kernels.linear.cuda_weight import KernelWeight
from pagemesh.kernels.linear.packed import Codebook, GroupInt, ScaledFp8
from pagemesh.kernels.linear.weight import Quantised, RowStack, Weight
from pagemesh.kernels.target import TARGETS, playing
from tests.unit.kernels.quantised import KINDS as SMALL_KINDS
from tests.unit.kernels.quantised import WEIGHTS_ALONE, channel_int8
from tests.unit.kernels.test_packed_linear import KINDS as LONG_KINDS

pytestmark = pytest.mark.usefixtures("in_triton")

# With groups of 3 to 8 inputs, and with those that checkpoints have.
KINDS: Final[Mapping[str, Any]] = {
    **{kind: SMALL_KINDS[kind] for kind in WEIGHTS_ALONE},
    **{
        kind: lambda shape, dtype, make=make: make(*shape, dtype)
        for kind, make in LONG_KINDS.items()
    },
}
all_kinds = pytest.mark.parametrize("kind", KINDS)
# Not bfloat16, which the interpreter cuts off where a GPU rounds.
dtypes = pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)


def make_weight(kind: str, num_outputs: int, num_inputs: int, dtype: torch.dtype) -> Weight:
    weight: Weight = KINDS[kind]((num_outputs, num_inputs), dtype)
    return weight


@pytest.mark.product(sample=10)
@dtypes
@all_kinds
@pytest.mark.parametrize("num_inputs", [512, 768], ids=["", "in half a tile more"])
def test_products_are_those_of_the_dense_weight(
    is_split: bool, dtype: torch.dtype, kind: str, num_inputs: int
) -> None:
    weight = make_weight(kind, 40, num_inputs, dtype)
    bias = torch.randn(40).to(dtype)
    rows, residual = torch.randn(37, num_inputs).to(dtype), torch.randn(37, 40).to(dtype)
    ours, dense = (make_linear(each, bias) for each in (weight, Dense(weight.dense())))
    for size in (1, 37):
        assert torch.equal(ours(rows[:size]), dense(rows[:size]))
    assert torch.equal(ours.add_to(residual, rows), dense.add_to(residual, rows))


@pytest.mark.product(most=6)
@dtypes
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "row_stack"])
@pytest.mark.parametrize("num_inputs", [512, 320], ids=["", "in half a tile more"])
def test_rows_are_looked_up_in_a_packed_table(
    dtype: torch.dtype, kind: str, num_inputs: int
) -> None:
    table = make_weight(kind, 40, num_inputs, dtype)
    assert not isinstance(table, RowStack)
    look_up = make_lookup(table)
    assert isinstance(getattr(look_up, "__self__", None), KernelWeight)
    for numbers in ([39], [5, 0, 5, 39, 17], []):
        asked = torch.tensor(numbers, dtype=torch.int64)
        found = look_up(asked)
        assert found.dtype == dtype
        assert torch.equal(found, table.dense()[asked])


def test_tables_that_no_kernel_unpacks_are_looked_up_by_torch() -> None:
    for table in (channel_int8((40, 64), torch.float16), Dense(torch.randn(40, 64).half())):
        numbers = torch.tensor([39, 0])
        assert torch.equal(make_lookup(table)(numbers), table.dense()[numbers])


@pytest.mark.product(most=6)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "row_stack"])
def test_gates_and_ups_may_be_packed(kind: str) -> None:
    weight = make_weight(kind, 2 * 35, 512, torch.float16)
    bias, rows = torch.randn(70).half(), torch.randn(40, 512).half() / 64
    ours, dense = (
        make_gated_linear(each, bias, Gate("silu")) for each in (weight, Dense(weight.dense()))
    )
    for size in (1, 40):
        assert torch.equal(ours(rows[:size]), dense(rows[:size]))


def test_inputs_may_end_within_a_tile_and_within_a_group() -> None:
    rows = torch.randn(3, 320).half()
    for kind in ("symmetric", "zero points", "floats", "int4_act_order", "fp8_blocks"):
        weight = make_weight(kind, 33, 320, torch.float16)
        assert torch.equal(make_linear(weight)(rows), make_linear(Dense(weight.dense()))(rows))


def test_numbers_are_rounded_to_the_type_of_the_rows_before_they_are_multiplied() -> None:
    """In bfloat16 as well: sums of what has no more than 8 digits are exact, and so is what is cut off."""
    scales = torch.exp2(torch.randint(-3, 1, (70, 4)).float())
    codes = torch.randint(0, 256, (70, 128), dtype=torch.uint8)
    weight = GroupInt(torch.bfloat16, codes, scales, 8, 32, 128)
    rows = torch.zeros(3, 128).bfloat16()
    rows[0, 5], rows[1, 127] = 1, -2
    assert torch.equal(make_linear(weight)(rows), rows @ weight.dense().t())


@pytest.mark.parametrize("capability", [80, 90], ids=["without an instruction", "with one"])
def test_every_float_of_8_bits_is_what_torch_says(capability: int) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    codes[(codes & 127) == 127] = 0
    numbers = codes.view(torch.float8_e4m3fn).view(2, 128)
    with playing(TARGETS[capability]):
        weight = ScaledFp8(torch.float32, numbers, torch.ones(2, 1), 128)
        assert torch.equal(make_linear(weight)(torch.eye(128)), numbers.float().t())


def test_a_number_that_is_none_spoils_its_output_alone() -> None:
    """Without an instruction, as that of the interpreter knows none."""
    codes = torch.randint(0, 120, (2, 128), dtype=torch.uint8)
    codes[0, 7] = 0xFF
    weight = ScaledFp8(torch.float32, codes.view(torch.float8_e4m3fn), torch.ones(2, 1), 128)
    with playing(TARGETS[80]):
        found = make_linear(weight)(torch.ones(1, 128))
    assert found.isnan().tolist() == [[True, False]]


def test_powers_of_two_may_be_as_small_and_as_large_as_there_are() -> None:
    scales = torch.tensor([[0, 1, 127, 250]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    for table in (tuple(float(place) for place in range(16)), E2M1):
        codes = torch.randint(0, 256, (1, 64), dtype=torch.uint8)
        weight = Codebook(torch.float32, codes, scales, table, 32)
        assert torch.equal(make_linear(weight)(torch.eye(128)), weight.dense().t())


E2M1: Final = (
    *(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0),
    *(-0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0),
)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "row_stack"])
def test_codes_stay_where_they_are(kind: str) -> None:
    weight: Quantised = KINDS[kind]((64, 512), torch.float16)
    codes = weight.numbers if isinstance(weight, ScaledFp8) else weight.codes
    arguments = KernelWeight(weight).arguments
    kept = arguments["weight"]
    assert isinstance(kept, torch.Tensor)
    assert kept.data_ptr() == codes.data_ptr()
    assert arguments["FORM"] is not None


def test_rows_of_several_kinds_are_multiplied_kind_by_kind() -> None:
    parts = (
        KINDS["units"]((40, 512), torch.float16),
        channel_int8((24, 512), torch.float16),
        Dense(torch.randn(10, 512).half()),
    )
    weight, bias = RowStack(parts), torch.randn(74).half()
    rows, residual = torch.randn(5, 512).half(), torch.randn(5, 74).half()
    alone = [
        make_linear(part, piece)
        for part, piece in zip(parts, bias.tensor_split([40, 64]), strict=True)
    ]
    linear = make_linear(weight, bias)
    assert torch.equal(linear(rows), torch.cat([each(rows) for each in alone], 1))
    added = [
        each.add_to(piece, rows)
        for each, piece in zip(alone, residual.tensor_split([40, 64], 1), strict=True)
    ]
    assert torch.equal(linear.add_to(residual, rows), torch.cat(added, 1))
    gated = make_gated_linear(weight, None, Gate("silu"))(rows)
    gates, ups = make_linear(weight)(rows).float().chunk(2, 1)
    torch.testing.assert_close(gated.float(), gates.sigmoid() * gates * ups, rtol=0.01, atol=0.01)


@pytest.mark.product(most=3)
@all_kinds
def test_experts_may_be_packed(kind: str) -> None:
    if kind in LONG_KINDS:
        ups, downs = (stack(kind, *shape) for shape in ((1024, 512), (512, 512)))
    else:
        ups, downs = (KINDS[kind](shape, torch.float16) for shape in ((3, 80, 72), (3, 72, 40)))
    hidden = torch.randn(7, ups.shape[2]).half() / 64
    choices = Choices(torch.rand(7, 2).half(), torch.rand(7, 3).argsort(1)[:, :2])
    ours, dense = (
        make_experts(Stack(of(ups), None), Stack(of(downs), None), Gate("silu"))(hidden, choices)
        for of in (lambda weight: weight, lambda weight: Dense(weight.dense()))
    )
    assert torch.equal(ours, dense)


def stack(kind: str, num_outputs: int, num_inputs: int) -> Quantised:
    first, *others = (KINDS[kind]((num_outputs, num_inputs), torch.float16) for _ in range(3))
    made: Quantised = first.beside(others)
    return made
