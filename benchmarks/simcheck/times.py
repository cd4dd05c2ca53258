"""Seconds to the first token and per token behind it, and requests that kept to limits of both, on both sides."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from simcheck.replay import Replayed

from pagemesh.sim.records import Outcome, Record
from pagemesh.sim.summary import is_good
from pagemesh.workload.slo import Slo

LIMITS: Final = Slo(ttft=0.2, tpot=0.04)
"""Of a good request, seconds."""


def tpot_of(answers: Sequence[Replayed]) -> float:
    """Mean of those that have one."""
    return statistics.mean(_tpot(one) for one in answers if one.num_answer_tokens > 1)


def modelled_tpot(records: Sequence[Record]) -> float:
    """Likewise."""
    return statistics.mean(
        record.tpot
        for record in records
        if record.outcome is Outcome.COMPLETED and record.num_output_tokens > 1
    )


def ttfts_of(answers: Sequence[Replayed]) -> list[float]:
    """Of those that have one, in order of size."""
    return sorted(one.ttft for one in answers if one.outcome is Outcome.COMPLETED)


def modelled_ttfts(records: Sequence[Record]) -> list[float]:
    """Likewise."""
    return sorted(record.ttft for record in records if record.ttft is not None)


def good_share(answers: Sequence[Replayed]) -> float:
    """Of all that came: who was refused, or never sent, is a miss."""
    num_good = sum(
        one.outcome is Outcome.COMPLETED and one.ttft <= LIMITS.ttft and _tpot(one) <= LIMITS.tpot
        for one in answers
    )
    return num_good / len(answers)


def modelled_good_share(records: Sequence[Record]) -> float:
    """Likewise."""
    return sum(is_good(record, LIMITS) for record in records) / len(records)


def _tpot(one: Replayed) -> float:
    return (one.last - one.first) / max(1, one.num_answer_tokens - 1)
