"""Tokens and log probabilities are those that were recorded: what a seed gives does not change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pagemesh.kernels.dispatch import backend_for
from tests.support.tolerances import float32_tolerance
from tests.unit.sampling.corpus import CHOSEN, Sampled, batches, chosen_of
from tests.unit.sampling.sampled import sample_on


def recorded(device: torch.device) -> Iterator[tuple[Sampled, dict[str, Any]]]:
    """Batches and what was chosen; of the large ones a sixth where Triton's sampler is tested."""
    is_slow = backend_for("sampling", device) == "cuda"
    for number, pair in enumerate(zip(batches(), json.loads(CHOSEN.read_text()), strict=True)):
        if not is_slow or pair[0].logits.numel() < 400 or number % 6 == 0:
            yield pair


def test_what_was_recorded_is_chosen_again(device: torch.device) -> None:
    tolerance = float32_tolerance(device)
    num_scored = 0
    for (logits, rows), expected in recorded(device):
        chosen = chosen_of(sample_on(device, logits, rows), rows)
        assert chosen["tokens"] == expected["tokens"]
        assert chosen["errors"] == expected["errors"]
        assert chosen["logprobs"].keys() == expected["logprobs"].keys()
        for name, (*exact, values) in chosen["logprobs"].items():
            assert exact == expected["logprobs"][name][:-1]
            assert values == pytest.approx(expected["logprobs"][name][-1], abs=tolerance)
            num_scored += 1
    assert num_scored > 10
