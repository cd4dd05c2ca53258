"""Batches of every kind of row, with logits that are the same on every machine, and what was chosen of them.

    python -m tests.unit.sampling.corpus

writes `chosen.json` anew, from the CPU's choices. A change of that file changes what clients with a seed get.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from pagemesh.sampling.plan import SampledRow, Samples
from tests.unit.sampling.sampled import CPU, Allow, Refuse, make_row, make_ruled_row, sample_on

CHOSEN: Final = Path(__file__).with_name("chosen.json")

KINDS: Final[tuple[dict[str, Any], ...]] = (
    {"temperature": 0.0},
    {},
    {"temperature": 0.3},
    {"temperature": 2.5, "top_k": 7},
    {"top_k": 1, "logprobs": 0},
    {"top_p": 0.6},
    {"top_p": 0.999, "logprobs": 1},
    {"temperature": 1.5, "top_k": 40, "top_p": 0.9},
    {"min_p": 0.1},
    {"temperature": 1.7, "min_p": 0.3, "top_k": 9, "top_p": 0.7},
    {"temperature": 0.0, "logprobs": 6},
    {"temperature": 0.0, "repetition_penalty": 1.7, "logprobs": 3},
    {"repetition_penalty": 0.6},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"temperature": 0.0, "frequency_penalty": -0.3, "presence_penalty": -0.7},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.1, "presence_penalty": 0.2, "top_k": 30},
    {"min_p": 0.2, "logit_bias": {3: 5.0, 7: -100.0, 11: 0.125}, "logprobs": 0},
    {"logit_bias": {2: 1.5, 5: -0.3}, "repetition_penalty": 2.0, "frequency_penalty": 0.7},
    {"bad_words_token_ids": ((2, 5), (8,), (5, 2, 9)), "top_k": 20},
    {"allowed_token_ids": (1, 4, 6, 9, 40), "top_p": 0.8, "logprobs": 5},
    {"allowed_token_ids": (2, 4, 8), "bad_words_token_ids": ((4,),), "logit_bias": {8: 2.0}},
)


class Sampled(NamedTuple):
    """A batch."""

    logits: torch.Tensor
    rows: list[SampledRow]


def batches() -> Iterator[Sampled]:
    """Alone, together, of one kind and of all, with logits of both types, flat, peaked and equal ones."""
    number = 0
    for vocab_size in (67, 331, 1300):
        for num_rows in (1, 2, 7, 32):
            for dtype in (torch.float32, torch.bfloat16):
                number += 1
                logits = _logits(number, num_rows, vocab_size).to(dtype)
                rows = [_row(number * 100 + index, vocab_size) for index in range(num_rows)]
                yield Sampled(logits, rows)
    for index, kind in enumerate(KINDS):
        number += 1
        rows = [make_ruled_row(row, [5, 2, row], seed=index, **kind) for row in range(4)]
        yield Sampled(_logits(number, 4, 97), rows)
    yield Sampled(_logits(number + 1, 40, 500), [make_row(i, temperature=0.0) for i in range(40)])
    yield _failing(number + 2)


def chosen_of(samples: Samples, rows: list[SampledRow]) -> dict[str, Any]:
    """What was chosen, as JSON; without tokens of rows that failed, which have no meaning."""
    return {
        "tokens": [
            None if row.request_id in samples.errors else token_id
            for token_id, row in zip(samples.token_ids, rows, strict=True)
        ],
        "errors": {name: error.reason for name, error in sorted(samples.errors.items())},
        "logprobs": {
            name: [
                score.token_id,
                score.rank,
                list(score.top_token_ids),
                [score.logprob, *score.top_logprobs],
            ]
            for name, score in sorted(samples.logprobs.items())
            if name not in samples.errors
        },
    }


def _logits(number: int, num_rows: int, vocab_size: int) -> torch.Tensor:
    """Whole multiples of a power of two, which float32 holds exactly, many of them equal."""
    raw = np.random.Philox(key=number).random_raw(3 * num_rows * vocab_size)
    steps = (raw.reshape(3, num_rows, vocab_size) % 512).astype(np.int64).sum(axis=0) - 767
    scale = 2.0 ** -(7 + number % 5)
    return torch.from_numpy((steps * scale).astype(np.float32))


def _row(number: int, vocab_size: int) -> SampledRow:
    kind = KINDS[number * 5 % len(KINDS)]
    output = [(number + 7 * i) % vocab_size for i in range(number % 5 * 4)] + [5, 2] * (number % 3)
    suppressed = (number % 11, 13) if number % 4 == 0 else ()
    row = make_ruled_row(number, output, suppressed, seed=number % 6 * 2**61, **kind)
    if number % 7 == 3 and "allowed_token_ids" not in kind:
        row = row._replace(constraint=Allow(set(range(number % 3, vocab_size, 3))))
    return row


def _failing(number: int) -> Sampled:
    """Rows that fail, each for another reason, between rows that do not."""
    logits = _logits(number, 8, 70)
    logits[1, 69], logits[3, 40], logits[4] = float("nan"), float("inf"), float("-inf")
    rows = [make_row(i, top_p=0.9, logprobs=2) for i in range(8)]
    rows[5] = make_ruled_row(5, [], (3,), allowed_token_ids=(3,))
    rows[6] = make_row(6, (5,))._replace(constraint=Refuse(set()))
    return Sampled(logits, rows)


def main() -> None:
    """Write what the CPU chooses."""
    lines = [
        json.dumps(chosen_of(sample_on(CPU, logits, rows), rows)) for logits, rows in batches()
    ]
    CHOSEN.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
