"""Choosing tokens on CUDA devices: four launches for any batch, two when nothing is drawn.

A row is spread over programs by chunks, as one multiprocessor would take too long for its vocabulary: its
logits are read once for the edits and maxima, and once more when it is drawn. What top-k, min-p and top-p
can keep is mostly a short list then, of which one program per row finds the threshold without sorting.
"""

from __future__ import annotations

from typing import Final

import torch

from pagemesh.kernels.launch import cdiv, launch, next_power_of_2
from pagemesh.kernels.sampling.draw_kernel import draw_kernel
from pagemesh.kernels.sampling.interface import SamplingPlan, check_plan
from pagemesh.kernels.sampling.kernel import best_kernel, edit_kernel, weigh_kernel
from pagemesh.kernels.target import Scratch

_CHUNK: Final = 2048
_GROUP: Final = 64
_ENTRIES: Final = 512
_LIST_BLOCK: Final = 2048
"""Candidates that a program has at once: of no more it keeps all in registers."""

_LIST_CHUNKS: Final = 8
"""Chunks that share such a block."""

_LIST_STAGES: Final = 4
_ROW_WARPS: Final = 8
"""Exponentials in float64 take many registers: 8 of them per thread."""

_DRAW_WARPS: Final = 16
_GREEDY_ROWS: Final = 256
"""Of the least plan that is kept for batches without one."""


class CudaTokenChooser:
    """`TokenChooser` of one vocabulary. Keeps its scratch memory: calls follow each other on a stream."""

    def __init__(
        self,
        vocab_size: int,
        device: torch.device,
        chunk: int = _CHUNK,
        list_block: int = _LIST_BLOCK,
    ) -> None:
        self._size = vocab_size
        self._device = device
        self._chunk = chunk
        self._list_block = list_block
        self._num_chunks = cdiv(vocab_size, chunk)
        self._groups = max(chunk // _GROUP, 2)
        # The shares of a row's tokens, each at most 1, add up to less than 2**63.
        self._scale = float(1 << min(62 - (vocab_size - 1).bit_length(), 52))
        self._scratch = Scratch(device)
        self._greedy = _greedy_plan(0, vocab_size, device)

    def __call__(
        self,
        logits: torch.Tensor,
        plan: SamplingPlan | None,
        token_ids: torch.Tensor,
        flags: torch.Tensor,
    ) -> None:
        if plan is None:
            plan = self._greedy_rows(len(logits))
        check_plan(logits, self._size, plan, token_ids, flags)
        edits = self._edits(logits, plan)
        maxima, found = self._maxima(len(logits)), self._found(len(logits), flags)
        launch(
            edit_kernel,
            (len(logits), self._num_chunks),
            {
                **edits,
                **maxima,
                "penalties": plan.penalties,
                "entry_bounds": plan.entry_bounds,
                "entry_ids": plan.entry_ids,
                "entry_values": plan.entry_values,
                "mask_rows": plan.mask_rows,
                "masks": plan.masks,
                "mask_stride": plan.masks.shape[1],
                "top_ks": plan.top_ks,
                "CHUNK": self._chunk,
                "GROUPS": self._groups,
                "ENTRIES": _ENTRIES,
            },
        )
        num_groups = self._num_chunks * self._groups
        launch(
            best_kernel,
            (len(logits),),
            {
                **maxima,
                **found,
                "num_groups": num_groups,
                "edit_slots": plan.edit_slots,
                "top_ks": plan.top_ks,
                "token_ids": token_ids,
                "CHUNKS": next_power_of_2(self._num_chunks),
                "ALL_GROUPS": next_power_of_2(num_groups),
            },
            num_warps=_ROW_WARPS,
        )
        self._draw(plan, edits, found, token_ids)

    def _greedy_rows(self, num_rows: int) -> SamplingPlan:
        """The plan of rows that take their likeliest token: it stays on the device."""
        if num_rows > len(self._greedy.edit_slots):
            num_kept = max(next_power_of_2(num_rows), _GREEDY_ROWS)
            self._greedy = _greedy_plan(num_kept, self._size, self._device)
        parts = self._greedy._asdict()
        return SamplingPlan(**{name: part[:num_rows] for name, part in parts.items()})

    def _draw(
        self,
        plan: SamplingPlan,
        edits: dict[str, object],
        found: dict[str, object],
        token_ids: torch.Tensor,
    ) -> None:
        num_drawn = len(plan.drawn_rows)
        lists = (num_drawn, self._size)
        take = self._scratch.take
        shared = {
            **edits,
            **found,
            "drawn_rows": plan.drawn_rows,
            "temperatures": plan.temperatures,
            "top_ks": plan.top_ks,
            "top_ps": plan.top_ps,
            "min_ps": plan.min_ps,
            "chunk_sums": take("sums", torch.int64, num_drawn, self._num_chunks),
            "candidate_weights": take("weights", torch.float64, *lists),
            "chunk_lists": take("lists", torch.int32, num_drawn, self._num_chunks, 2),
            "candidate_keys": take("keys", torch.float64, *lists),
            "candidate_ids": take("ids", torch.int32, *lists),
            "CHUNK": self._chunk,
            "SCALE": self._scale,
        }
        bounds = {"bounds": shared.pop("bounds")}
        grid = (num_drawn, self._num_chunks)
        launch(weigh_kernel, grid, {**shared, **bounds}, num_warps=_ROW_WARPS)
        draws = {
            "seeds": plan.seeds,
            "positions": plan.positions,
            "kept_sums": take("kept", torch.int64, num_drawn, self._num_chunks),
            "token_ids": token_ids,
            "CHUNKS": next_power_of_2(self._num_chunks),
            "GROUP": _LIST_CHUNKS,
            "BLOCK": self._list_block,
            "STAGES": _LIST_STAGES,
        }
        launch(draw_kernel, (num_drawn,), {**shared, **draws}, num_warps=_DRAW_WARPS)

    def _edits(self, logits: torch.Tensor, plan: SamplingPlan) -> dict[str, object]:
        """The logits to choose from: as given, or of edited rows in memory of their own."""
        return {
            "logits": logits,
            "row_stride": logits.stride(0),
            "edited": self._scratch.take("edited", torch.float32, len(plan.mask_rows), self._size),
            "edit_slots": plan.edit_slots,
            "size": self._size,
            "num_chunks": self._num_chunks,
        }

    def _maxima(self, num_rows: int) -> dict[str, object]:
        take, shape = self._scratch.take, (num_rows, self._num_chunks)
        return {
            "num_chunks": self._num_chunks,
            "chunk_packs": take("packs", torch.int64, *shape),
            "chunk_tops": take("tops", torch.float32, *shape),
            "group_keys": take("groups", torch.int32, *shape, self._groups),
        }

    def _found(self, num_rows: int, flags: torch.Tensor) -> dict[str, object]:
        take = self._scratch.take
        return {
            "flags": flags,
            "bests": take("bests", torch.float32, num_rows),
            "bounds": take("bounds", torch.float32, num_rows),
            "num_candidates": take("counts", torch.int32, num_rows),
        }


def _greedy_plan(num_rows: int, vocab_size: int, device: torch.device) -> SamplingPlan:
    def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return SamplingPlan(
        temperatures=zeros(num_rows, dtype=torch.float64),
        top_ps=zeros(num_rows, dtype=torch.float64),
        min_ps=zeros(num_rows, dtype=torch.float64),
        seeds=zeros(num_rows, dtype=torch.int64),
        positions=zeros(num_rows, dtype=torch.int64),
        top_ks=zeros(num_rows, dtype=torch.int32),
        drawn_rows=zeros(0, dtype=torch.int32),
        edit_slots=torch.full((num_rows,), -1, dtype=torch.int32, device=device),
        penalties=zeros(0, 3, dtype=torch.float32),
        entry_bounds=zeros(0, 5, dtype=torch.int32),
        entry_ids=zeros(0, dtype=torch.int32),
        entry_values=zeros(0, dtype=torch.float32),
        mask_rows=zeros(0, dtype=torch.int32),
        masks=zeros(0, -(-vocab_size // 32), dtype=torch.int32),
    )
