"""On a GPU tokens are drawn of a real vocabulary as by the host, whose lists of candidates are long or short."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch

from tests.unit.sampling.sampled import CPU, make_row, sample_on

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

VOCAB_SIZE: Final = 128_256
KINDS: Final[list[dict[str, Any]]] = [
    {"top_p": 0.95},
    {"top_p": 0.5},
    {"top_p": 0.999, "temperature": 1.5},
    {"top_k": 50, "top_p": 0.9},
    {"top_k": 30_000, "top_p": 0.9},
    {"min_p": 0.001},
    {"min_p": 0.001, "top_p": 0.8},
    {},
]


@pytest.mark.parametrize("deviation", [0.0, 1.28, 6.0], ids=["all equal", "flat", "peaked"])
def test_tokens_are_the_hosts_in_any_company(deviation: float) -> None:
    torch.manual_seed(5)
    rows = [make_row(i, seed=i, **KINDS[i % len(KINDS)]) for i in range(4 * len(KINDS))]
    logits = (torch.randn(len(rows), VOCAB_SIZE) * deviation).bfloat16()
    cuda = torch.device("cuda")
    expected = sample_on(CPU, logits.float(), rows).token_ids
    assert sample_on(cuda, logits, rows).token_ids == expected
    for begin, end in ((0, 1), (3, 5), (8, 32)):
        part = sample_on(cuda, logits[begin:end], rows[begin:end]).token_ids
        assert part == expected[begin:end]
