"""The CPU's draws against the plain definition by torch, in all sizes, types and mixtures."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
import torch

from pagemesh.kernels.jit.compiled import CompiledFunction
from pagemesh.kernels.jit.cpu_isa import CpuIsa, processor_isas, using_isa
from pagemesh.kernels.jit.doubles import DOUBLE, exp, load_doubles, store_doubles
from pagemesh.kernels.jit.emit import LANES, Emitter
from pagemesh.kernels.sampling.cpu_draw import CpuDraws, DrawParameters
from tests.support.draws import draw_tokens

# Around vectors and blocks, of one and of several.
SIZES = [1, 5, 16, 17, 1024, 1025, 3000, 4096 + 31]
NUM_ROWS = 23


def logits_of(kind: str, size: int, draw: np.random.Generator) -> torch.Tensor:
    flatness = {"flat": 0.01, "usual": 2.5, "sure": 30.0, "equals": 1.0, "few": 3.0}[kind]
    logits = torch.from_numpy(draw.standard_normal((NUM_ROWS, size)) * flatness)
    if kind == "equals":
        logits = logits.round()
    if kind == "few":
        # As a mask leaves them.
        logits[:, draw.random(size) < 0.9] = -math.inf
        logits[:, draw.integers(size)] = 0.5
    return logits


def parameters_of(size: int, draw: np.random.Generator) -> DrawParameters:
    """Each row its own."""
    return DrawParameters(
        draw.choice([1e-5, 0.3, 1.0, 2.0, 50.0], NUM_ROWS),
        draw.choice([0, 1, 3, 50, max(size - 1, 1)], NUM_ROWS),
        draw.choice([0.0, 0.05, 0.5, 1.0], NUM_ROWS),
        draw.choice([1.0, 0.95, 0.5, 0.01, 1e-9], NUM_ROWS),
        draw.random(NUM_ROWS),
    )


@pytest.mark.product
@pytest.mark.parametrize("isa", processor_isas())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["flat", "usual", "sure", "equals", "few"])
def test_tokens_are_those_of_the_definition(kind: str, dtype: torch.dtype, isa: CpuIsa) -> None:
    draw = np.random.default_rng(7)
    with using_isa(isa):
        draws = CpuDraws()
        for size in SIZES:
            # Rows of a wider tensor.
            wide = torch.full((NUM_ROWS, size + 3), math.nan, dtype=dtype)
            logits = wide[:, 2 : size + 2]
            logits[:] = logits_of(kind, size, draw).to(dtype)
            parameters = parameters_of(size, draw)
            assert draws(logits, parameters).tolist() == draw_tokens(logits, parameters)


def one_of(parameters: DrawParameters, row: int) -> DrawParameters:
    return DrawParameters._make(part[row : row + 1] for part in parameters)


def test_a_row_is_drawn_alike_in_any_company() -> None:
    draw = np.random.default_rng(5)
    logits, parameters = logits_of("usual", 50_000, draw).float(), parameters_of(50_000, draw)
    draws = CpuDraws()
    together = draws(logits, parameters).tolist()
    alone = [draws(logits[row : row + 1], one_of(parameters, row)) for row in range(NUM_ROWS)]
    assert together == [token for tokens in alone for token in tokens.tolist()]
    assert together == draw_tokens(logits, parameters)


@pytest.mark.parametrize("draw", [0.0, 1 - 2**-53])
def test_the_first_and_the_last_draw_find_a_token(draw: float) -> None:
    """A sum that is rounded up may never be reached: then the last token that may be drawn is."""
    logits = torch.full((1, 2500), -math.inf)
    logits[0, 3:2100] = 0.1
    one = np.ones(1)
    parameters = DrawParameters(one * 0.7, np.zeros(1, np.int64), one * 0, one, one * draw)
    assert CpuDraws()(logits, parameters).tolist() == [3 if draw == 0 else 2099]


def test_a_larger_vocabulary_may_follow() -> None:
    draws, one = CpuDraws(), np.ones(1)
    parameters = DrawParameters(one, np.ones(1, np.int64), one * 0, one, one * 0.5)
    for size in (10, 20_000, 7):
        logits = torch.zeros(1, size)
        logits[0, -1] = 1.0
        assert draws(logits, parameters).tolist() == [size - 1]


def test_exponentials_are_a_rounding_off_at_most() -> None:
    def emit(e: Emitter) -> None:
        numbers = e.builder.bitcast(e.function.args[0], DOUBLE.as_pointer())
        store_doubles(e, [exp(e, half) for half in load_doubles(e, numbers)], numbers)
        e.builder.ret_void()

    function = CompiledFunction(None, "exp", emit)
    draw = np.random.default_rng(1)
    memory = np.empty(2 * LANES)
    line = memory[(-memory.ctypes.data % 64) // 8 :][:LANES]
    for exponents in (
        np.array([0.0, -0.0, -1e-300, -1.0, -700.0, -701.0, -1e300, -math.inf] * 2),
        *(-draw.exponential(scale, LANES) for scale in (1e-9, 0.3, 1, 5, 30) for _ in range(200)),
    ):
        line[:] = exponents
        function.call(ctypes.c_void_p(line.ctypes.data))
        expected = [math.exp(x) if x >= -700 else 0.0 for x in exponents]
        np.testing.assert_allclose(line, expected, rtol=2.0**-52, atol=0)
