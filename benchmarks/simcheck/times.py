"""Mean seconds per token behind the first one, on both sides."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from simcheck.replay import Replayed

from pagemesh.sim.records import Record


def tpot_of(answers: Sequence[Replayed]) -> float:
    return statistics.mean(
        (one.last - one.first) / (one.num_answer_tokens - 1)
        for one in answers
        if one.num_answer_tokens > 1
    )


def modelled_tpot(records: Sequence[Record]) -> float:
    return statistics.mean(record.tpot for record in records if record.num_output_tokens > 1)
