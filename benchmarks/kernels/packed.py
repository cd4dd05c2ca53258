"""Products of one row with weights of few bits, read from memory as a decode reads them: one after the other, recorded.

Bytes: the weights as they are packed, each once. Of little they stay in a cache that processors share, of much in none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from contest import Contest

from pagemesh.kernels.jit.program import Program
from pagemesh.kernels.jit.recording import ResultMemory, recording
from pagemesh.kernels.linear import Dense, Weight, make_linear
from pagemesh.kernels.linear.packed import GroupInt

SHAPE: Final = (4096, 2048)
SIZES: Final = {"100 MB": 10**8, "1 GB": 10**9}
KINDS: Final = ("bfloat16", "int8", "q8_0", "int4", "q4_0")


def contests(device: torch.device, *, quick: bool) -> Iterator[Contest]:
    """Every kind of weight, of as many bytes."""
    if device.type != "cpu":
        return
    row = torch.randn(1, SHAPE[1]).bfloat16()
    for name in list(SIZES)[:1] if quick else SIZES:
        for kind in KINDS:
            num_bytes = _weight(kind).num_bytes
            linears = [make_linear(_weight(kind)) for _ in range(SIZES[name] // num_bytes)]
            memory = ResultMemory()
            with recording(memory) as recorded:
                # A result that nothing keeps would give its memory to the next.
                results = [linear(row) for linear in linears]
            program = Program(recorded.calls)

            def run(program: Program = program, kept: object = (memory, results)) -> None:
                program.run()

            yield Contest(
                f"a row by {name} of {kind}",
                len(linears) * num_bytes,
                2.0 * len(linears) * SHAPE[0] * SHAPE[1],
                {"ours": run},
            )


def _weight(kind: str) -> Weight:
    """As quantising while loading, and GGUF's types, make them; of any numbers."""
    num_out, num_in = SHAPE
    dtype = torch.bfloat16
    if kind == "bfloat16":
        return Dense(torch.randn(SHAPE).to(dtype))
    bits = 8 if "8" in kind else 4
    codes = torch.randint(0, 256, (num_out, num_in * bits // 8), dtype=torch.uint8)
    group = 128 if kind == "int8" else 32
    scales, least = torch.rand(2, num_out, num_in // group) / 1000
    is_ours = kind.startswith("int")
    return GroupInt(
        dtype,
        codes,
        scales.to(dtype if is_ours else torch.float16),
        8 if bits == 8 else 4,
        group,
        centre=0 if kind == "int4" else 1 << (bits - 1),
        minimums=least.to(dtype) if kind == "int4" else None,
    )
