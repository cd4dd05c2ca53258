"""Both sides of a policy as figures, beside what two real runs differ by."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Final

from report import Report
from simcheck.measure import Sides
from simcheck.modelled import WORKER_IDS
from simcheck.replay import Replayed
from simcheck.times import (
    good_share,
    modelled_good_share,
    modelled_tpot,
    modelled_ttfts,
    tpot_of,
    ttfts_of,
)

from pagemesh.sim.records import Outcome, Record
from pagemesh.sim.summary import percentile

SAME_SHARES: Final = 0.03
"""Shares that differ by less are called equal."""
NEAR_TTFT: Final = 0.25
"""So is time to first token, in relation to the mean of the real runs."""


def note_rates(report: Report, name: str, sides: Sides) -> None:
    """The rates that the simulation had."""
    model = sides.model
    prefill, decode = model.decode.prefill, model.decode.decode
    for what, seconds in (
        ("a prompt's token", prefill.seconds_per_token),
        ("a pair", prefill.seconds_per_pair),
        ("a step with prompts", prefill.seconds_per_step),
        ("a step of decodes", decode.seconds_per_step),
        ("a sequence", decode.seconds_per_sequence),
        ("the router", model.router_seconds),
        ("a way to a worker", model.network_seconds),
    ):
        report.add(f"{name}: rate, {what}", "ms", [1000 * seconds])
    assert model.cores is not None, "the workers are on one machine"
    report.add(f"{name}: cores for engines", "", [model.cores])
    report.settings["kv_tokens_per_worker"] = model.decode.kv_tokens


def compare(report: Report, name: str, sides: Sides) -> None:
    """Figures of both sides, and what they differ by, beside what two real runs do."""
    records = sides.simulated.records
    real, again = sides.real, sides.again
    hits = [_share(one.answers, "num_cached_tokens") for one in (real, again)]
    simulated = _share(records, "num_delivered_tokens")
    report.add(f"{name}: hit rate, real, both runs", "", hits)
    report.add(f"{name}: hit rate, simulated", "", [simulated])
    timed = _share(sides.timed.records, "num_delivered_tokens")
    report.add(f"{name}: hit rate, simulated, requests at the real times", "", [timed])
    difference = abs(simulated - statistics.mean(hits))
    report.add(f"{name}: hit rate, difference", "", [difference], aim=SAME_SHARES)
    placed = Counter(record.decode_id for record in records)
    modelled = [placed[name] for name in WORKER_IDS]
    for side, counts in (
        ("real", real.num_requests),
        ("real again", again.num_requests),
        ("simulated", modelled),
    ):
        shares = sorted((count / len(records) for count in counts), reverse=True)
        report.add(f"{name}: shares of workers, busiest first, {side}", "", shares)
    for pair, one, other in (
        ("two real runs", real.num_requests, again.num_requests),
        ("real and simulated", real.num_requests, modelled),
        ("real again and simulated", again.num_requests, modelled),
    ):
        moved = sum(abs(a - b) for a, b in zip(one, other, strict=True)) / 2 / len(records)
        report.add(f"{name}: requests on other workers, {pair}", "", [moved])
    _compare_times(report, name, sides)


def _compare_times(report: Report, name: str, sides: Sides) -> None:
    """First tokens, later ones, and what became of requests."""
    records, runs = sides.simulated.records, [sides.real.answers, sides.again.answers]
    firsts, modelled_firsts = [ttfts_of(run) for run in runs], modelled_ttfts(records)
    for share in (0.5, 0.9):
        ttft = f"{name}: TTFT p{100 * share:g}"
        real = [_percentile_ms(each, share) for each in firsts]
        simulated = _percentile_ms(modelled_firsts, share)
        report.add(f"{ttft}, real, both runs", "ms", real)
        report.add(f"{ttft}, simulated", "ms", [simulated])
        off = abs(simulated / statistics.mean(real) - 1)
        report.add(f"{ttft}, difference", "", [off], aim=NEAR_TTFT if share == 0.5 else None)
    report.add(f"{name}: TPOT, real, both runs", "ms", [1000 * tpot_of(run) for run in runs])
    report.add(f"{name}: TPOT, simulated", "ms", [1000 * modelled_tpot(records)])
    report.add(f"{name}: good requests, real, both runs", "", [good_share(run) for run in runs])
    report.add(f"{name}: good requests, simulated", "", [modelled_good_share(records)])
    report.add(f"{name}: refused, real, both runs", "", [_refused(run) for run in runs])
    report.add(f"{name}: refused, simulated", "", [_refused(records)])


def _percentile_ms(seconds: Sequence[float], share: float) -> float:
    found = percentile(seconds, share)
    if found is None:
        raise RuntimeError("no request had a first token: there is nothing to compare")
    return 1000 * found


def _refused(side: Sequence[Replayed] | Sequence[Record]) -> float:
    return sum(one.outcome is Outcome.REJECTED for one in side) / len(side)


def _share(side: Sequence[Replayed] | Sequence[Record], field: str) -> float:
    num_tokens: int = sum(getattr(one, field) for one in side)
    return num_tokens / sum(one.num_prompt_tokens for one in side)
