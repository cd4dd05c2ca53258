"""Log probabilities on CUDA devices: the logits are read once, whatever is asked of them."""

from __future__ import annotations

from typing import Final

import torch

from pagemesh.kernels.launch import launch
from pagemesh.kernels.logprobs.interface import TokenScores, check_scores
from pagemesh.kernels.logprobs.kernel import chunk_kernel, row_kernel
from pagemesh.kernels.scratch import Scratch
from pagemesh.kernels.whole_numbers import cdiv, next_power_of_2

_CHUNK: Final = 2048


class CudaTokenScorer:
    """`TokenScorer`. Keeps its scratch memory: calls follow each other on a stream."""

    def __init__(self, device: torch.device, chunk: int = _CHUNK) -> None:
        self._chunk = chunk
        self._scratch = Scratch(device)

    def __call__(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        token_ids: torch.Tensor,
        scores: TokenScores,
    ) -> None:
        check_scores(logits, rows, token_ids, scores)
        (num_rows, num_top), size = scores.top_ids.shape, logits.shape[1]
        num_chunks = cdiv(size, self._chunk)
        take = self._scratch.take
        shared: dict[str, object] = {
            "logits": logits,
            "row_stride": logits.stride(0),
            "rows": rows,
            "token_ids": token_ids,
            "chunk_tops": take("tops", torch.float32, num_rows, num_chunks),
            "chunk_sums": take("sums", torch.float32, num_rows, num_chunks),
            "chunk_ranks": take("ranks", torch.int32, num_rows, num_chunks),
            "chunk_packs": take("packs", torch.int64, num_rows, num_chunks, num_top),
            "num_chunks": num_chunks,
            "NUM_TOP": num_top,
        }
        launch(chunk_kernel, (num_rows, num_chunks), {**shared, "size": size, "CHUNK": self._chunk})
        powers = {
            "CHUNKS": next_power_of_2(num_chunks),
            "PACKS": next_power_of_2(max(num_chunks * num_top, 1)),
        }
        launch(row_kernel, (num_rows,), {**shared, **scores._asdict(), **powers})
