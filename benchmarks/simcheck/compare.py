"""Both sides of a policy as figures, beside what two real runs differ by."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Final

from report import Report
from simcheck.measure import WORKER_IDS, Sides
from simcheck.replay import Replayed
from simcheck.times import modelled_tpot, tpot_of

from pagemesh.sim.records import Record

SAME_SHARES: Final = 0.03
"""Shares that differ by less are called equal."""


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
    firsts = [sorted(one.ttft for one in run.answers) for run in (real, again)]
    modelled_firsts = sorted(record.ttft for record in records if record.ttft is not None)
    for share in (0.5, 0.9):
        ttft = f"{name}: TTFT p{100 * share:g}"
        report.add(f"{ttft}, real", "ms", [1000 * _percentile(each, share) for each in firsts])
        report.add(f"{ttft}, simulated", "ms", [1000 * _percentile(modelled_firsts, share)])
    tpots = [1000 * tpot_of(one.answers) for one in (real, again)]
    report.add(f"{name}: TPOT, real", "ms", tpots)
    report.add(f"{name}: TPOT, simulated", "ms", [1000 * modelled_tpot(records)])


def _share(side: Sequence[Replayed] | Sequence[Record], field: str) -> float:
    num_tokens: int = sum(getattr(one, field) for one in side)
    return num_tokens / sum(one.num_prompt_tokens for one in side)


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[math.ceil(share * len(ordered)) - 1]
