"""Where transfers cost time: does the router choose the way that would have been best?

Two decode workers and a prefill worker, a thread each, on machines of their own with slow cables between
them. Each case is a prompt in a situation: of some length, new or with its beginning in the cache of
decode-1, while that is idle or busy with another prompt. Every way that there is for it is taken once in each
round, by a plan handed to a decode worker, and once the router chooses. A prompt is never used twice.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean, median

from kv.cases import Case, Cases, make_cases
from kv.far_mesh import FarMesh
from kv.namespaces import Cable, has_netem, why_not
from random_models import make_model
from report import Report
from turns import turns

MODEL = "160M-long"
DELAY_MS = 1.0
LINKS = {"1 Gbit/s": 1_000, "10 Gbit/s": 10_000}
LENGTHS, QUICK_LENGTHS = (512, 2048, 4096), (1024,)
WORKERS = ("decode-0", "decode-1", "prefill-0")
MOST_REGRET = 1.05
RULE = "the router's choice"


def measure(report: Report, *, quick: bool) -> None:
    """Every link; nothing where there can be none."""
    if reason := why_not():
        print(f"no links that cost something: {reason}", file=sys.stderr)
        return
    report.settings["links"] = "netem" if has_netem() else "tbf and delay lines"
    links = dict(list(LINKS.items())[:1]) if quick else LINKS
    for link, megabits in links.items():
        cable = Cable(megabits, DELAY_MS)
        with FarMesh(make_model(MODEL), dict.fromkeys(WORKERS, cable)) as mesh:
            cases = make_cases(QUICK_LENGTHS if quick else LENGTHS)
            _Link(link, report).add_figures(
                asyncio.run(_measure(mesh, cases, num_rounds=1 if quick else 3))
            )


class _Outcomes:
    """Of one case, round by round."""

    def __init__(self) -> None:
        self.ways: dict[str, list[float]] = defaultdict(list)
        """TTFT in ms of each way."""
        self.rule: list[float] = []
        """TTFT in ms of what the router chose."""
        self.chosen: list[str] = []
        """Which way that was."""

    @property
    def best_ms(self) -> float:
        """Of the way with the least median."""
        return min(median(samples) for samples in self.ways.values())

    def forced_ms(self, way: str) -> float:
        """Of a way that was chosen; one that was not forced went wrong: the prompt took its time all the same."""
        return median(self.ways.get(way) or self.rule)


async def _measure(mesh: FarMesh, cases: Sequence[Case], num_rounds: int) -> dict[str, _Outcomes]:
    taken: dict[str, _Outcomes] = defaultdict(_Outcomes)
    async with Cases(mesh) as runs:
        # The workers get to know how fast they and their links are.
        await runs.warm_up()
        for number in range(num_rounds):
            for case in cases:
                outcomes = taken[case.name]
                for way in turns([*case.ways, None], number):
                    if way is None:
                        chosen, first_ms = await runs.choose(case)
                        outcomes.rule.append(first_ms)
                        outcomes.chosen.append(chosen)
                    else:
                        outcomes.ways[way.name].append(await runs.force(case, way))
    return taken


class _Link:
    """Writes down what came of one link."""

    def __init__(self, name: str, report: Report) -> None:
        self._name = name
        self._report = report

    def add_figures(self, taken: dict[str, _Outcomes]) -> None:
        """Every way of every case, and the router's choices against the best of them."""
        for case, outcomes in taken.items():
            figure = f"{self._name}, {case}"
            for way, samples in outcomes.ways.items():
                self._report.add(f"{figure}: {way}", "ms", samples)
            self._report.add(f"{figure}: {RULE}", "ms", outcomes.rule)
            chosen = Counter(outcomes.chosen)
            self._report.settings[f"{figure}: chosen"] = ", ".join(
                f"{count} x {way}" for way, count in chosen.most_common()
            )
        best_ms = sum(outcomes.best_ms for outcomes in taken.values())
        rounds = zip(*(outcomes.rule for outcomes in taken.values()), strict=True)
        self._report.add(
            f"{self._name}, all cases: time of {RULE} over the best way's",
            "",
            [sum(of_round) / best_ms for of_round in rounds],
            aim=MOST_REGRET,
        )
        # What the same ways took when they were forced: without the router's own time, and less noisy.
        choices = zip(*(outcomes.chosen for outcomes in taken.values()), strict=True)
        forced = [
            [
                outcomes.forced_ms(way)
                for outcomes, way in zip(taken.values(), of_round, strict=True)
            ]
            for of_round in choices
        ]
        self._report.add(
            f"{self._name}, all cases: forced time of the ways chosen over the best way's",
            "",
            [sum(of_round) / best_ms for of_round in forced],
            aim=MOST_REGRET,
        )
        # Sums are mostly those of long prompts: here a short one counts as much.
        self._report.add(
            f"{self._name}, mean of the cases: forced time of the way chosen over the best way's",
            "",
            [
                fmean(
                    ms / outcomes.best_ms
                    for ms, outcomes in zip(of_round, taken.values(), strict=True)
                )
                for of_round in forced
            ],
            aim=MOST_REGRET,
        )
