"""Steps of all sizes start no variant of a kernel that steps of powers of two did not: see `warm_up_batches`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pagemesh.config import ModelConfig
from pagemesh.kernels.dispatch import using
from pagemesh.kernels.launch import Launch, noting
from pagemesh.kernels.write_kv import Turn
from pagemesh.models.decoder import Decoder
from pagemesh.models.loader import load_model
from tests.identity.checkpoints import RECIPES, make_checkpoint

LONGEST = 512
# Numbers that the compiler makes no variants of.
FREE = {"num_tokens", "eps", "limit", "alpha"}


class NoAttention:
    """Attention is none of a decoder's own."""

    def write(self, layer: int, heads: torch.Tensor, turn: Turn | None) -> None:
        """Nowhere."""

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        return query.contiguous()


def variant(launch: Launch) -> tuple[Any, ...]:
    """What a kernel is compiled for."""
    arguments = {
        name: each.dtype if isinstance(each, torch.Tensor) else each
        for name, each in launch.arguments.items()
        if name not in FREE
    }
    return launch.kernel.__name__, str(arguments), str(launch.options)


def variants(decoder: Decoder, num_tokens: int, num_rows: int) -> set[tuple[Any, ...]]:
    """Of a step of so many tokens, of which some hidden states are asked for."""
    tokens = torch.zeros(num_tokens, dtype=torch.int64)
    with noting() as launches:
        decoder.forward(tokens, tokens, NoAttention(), torch.arange(num_rows))
    return {variant(launch) for launch in launches}


def test_steps_of_powers_of_two_start_all_variants(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, RECIPES["Llama GQA"])
    with using("cuda"), torch.inference_mode():
        decoder = load_model(ModelConfig(str(tmp_path), dtype="bfloat16")).decoder
        assert isinstance(decoder, Decoder)
        known: set[tuple[Any, ...]] = set()
        for power in range(LONGEST.bit_length()):
            known |= variants(decoder, 1 << power, 1 << power)
        for num_tokens in (*range(1, 20), 33, 64, 65, 100, 200, 256, 257, 300, 400, LONGEST):
            for num_rows in {1, 3, num_tokens // 2, num_tokens} - {0}:
                if num_rows <= num_tokens:
                    assert variants(decoder, num_tokens, num_rows) <= known, (num_tokens, num_rows)
