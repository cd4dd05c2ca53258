"""A kernel that reads a buffer again and again through asynchronous copies, and keeps nothing of it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagemesh.kernels.launch import launch


@triton.jit  # type: ignore[untyped-decorator]
def _read_kernel(source, sums, num_tiles, num_steps, BLOCK: tl.constexpr, STAGES: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """`source` holds `num_tiles` tiles of BLOCK values. Programs take neighbouring tiles at a time, and
    others each time, so that no first-level cache has them."""
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    values = tl.zeros([BLOCK], tl.float32)
    for step in tl.range(0, num_steps, num_stages=STAGES):
        tile = (step * num_programs + program) % num_tiles
        places = tile.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        values += tl.load(source + places).to(tl.float32)
    tl.store(sums + program, tl.sum(values, axis=0))


class Reader:
    """Reads `num_bytes` of a buffer in one launch, as often as it takes."""

    def __init__(
        self, source: torch.Tensor, num_bytes: int, num_programs: int, block: int, stages: int
    ) -> None:
        """`source` is of bfloat16, a whole number of blocks."""
        self._source = source
        self._block = block
        self._stages = stages
        self._num_programs = num_programs
        self._num_steps = max(1, num_bytes // (num_programs * block * source.itemsize))
        self._sums = torch.empty(num_programs, dtype=torch.float32, device=source.device)
        self.num_bytes = self._num_steps * num_programs * block * source.itemsize
        """What a call really reads."""

    def __call__(self) -> torch.Tensor:
        """Start it."""
        launch(
            _read_kernel,
            (self._num_programs,),
            {
                "source": self._source,
                "sums": self._sums,
                "num_tiles": self._source.numel() // self._block,
                "num_steps": self._num_steps,
                "BLOCK": self._block,
                "STAGES": self._stages,
            },
            num_warps=4,
            num_stages=self._stages,
        )
        return self._sums
