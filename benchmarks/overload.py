"""What does a mesh do with more requests than it can answer?

A whole mesh with the demo model. Its capacity is what clients get that each send one request after the other. Then
requests come at random times, at a half to five times that. Good is an answer that was whole within its deadline,
which requests carry. Rejections are counted by status. Beside that: clients that would wait for ever; a tenant that
sends one request at a time, alone and while another one floods the mesh; and the memory of every process.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

import yaml
from cpu_clock import CpuClock
from mesh import MODEL, Mesh
from open_loop import REFUSED, Asking, Outcome, closed_loop, poisson, statuses
from report import Report, arguments

from pagemesh.router.tenants.keys import hash_of

QUESTION = "Overload: goodput, refusals, fairness and memory at up to five times the capacity"
LOADS: Final = (0.5, 1.0, 2.0, 3.0, 5.0)
NUM_SEATS: Final = 16
PROMPT_TOKENS: Final = 128
NUM_TOKENS: Final = 128
DEADLINE_S: Final = 8.0
SETTLING: Final = 0.25
"""Share of each measurement in which nothing is counted: queues fill."""
HEAVY, LIGHT = "pm-heavy-0123456789abcdef", "pm-light-0123456789abcdef"
VOCAB_SIZE: Final = 1000


class MemoryWatch:
    """The largest resident memory of each process of a mesh, in MiB, since it was last asked."""

    def __init__(self, mesh: Mesh) -> None:
        self._parts = {name: part.process for name, part in mesh.parts().items()}
        self.clocks = {
            name: CpuClock(process.pid)
            for name, process in self._parts.items()
            if name in ("router", "gateway")
        }
        """What CPU time those have taken that every request goes through, refused ones too."""
        self._most = dict.fromkeys(self._parts, 0.0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def take(self) -> dict[str, float]:
        """By the process's name; begins anew."""
        most, self._most = self._most, dict.fromkeys(self._parts, 0.0)
        return most

    def close(self) -> None:
        """Watch no more."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            for name, process in self._parts.items():
                self._most[name] = max(self._most[name], process.memory_info().rss / 2**20)


def is_good(outcome: Outcome) -> bool:
    """Whether an answer was whole within the deadline."""
    return outcome.is_whole and outcome.seconds <= DEADLINE_S


def add_load(report: Report, name: str, outcomes: Sequence[Outcome], seconds: float) -> None:
    """What came of requests that were sent within so many seconds."""
    good = [outcome for outcome in outcomes if is_good(outcome)]
    per_second = _per_second(outcomes, good, seconds)
    report.sample(f"{name}: goodput", "/s", per_second)
    report.sample(f"{name}: good tokens", "/s", per_second * NUM_TOKENS)
    report.sample(f"{name}: good of all", "%", 100 * len(good) / len(outcomes))
    for status, count in sorted(statuses(outcomes).items()):
        report.sample(f"{name}: {status}", "/s", count / seconds)
    if good:
        _add_latencies(report, name, good)
    refused = [o.seconds for o in outcomes if o.status == REFUSED]
    if refused:
        report.sample(f"{name}: a refusal takes, median", "ms", statistics.median(refused) * 1e3)


def _per_second(outcomes: Sequence[Outcome], good: Sequence[Outcome], seconds: float) -> float:
    """How many good ones ended in a second, once queues have settled and while requests come."""
    begin = min(outcome.sent for outcome in outcomes)
    settled = begin + SETTLING * seconds
    ended = sum(settled < outcome.end <= begin + seconds for outcome in good)
    return ended / ((1 - SETTLING) * seconds)


def _add_latencies(report: Report, name: str, outcomes: Sequence[Outcome]) -> None:
    first = sorted((outcome.first - outcome.sent) * 1e3 for outcome in outcomes)
    whole = sorted(outcome.seconds * 1e3 for outcome in outcomes)
    for what, values in (("first token", first), ("whole answer", whole)):
        report.sample(f"{name}: {what}, median", "ms", statistics.median(values))
        report.sample(f"{name}: {what}, p99", "ms", values[int(0.99 * (len(values) - 1))])


async def measure_round(
    report: Report, asking: Asking, capacity: float, seconds: float, watch: MemoryWatch, seed: int
) -> None:
    """All loads, one after the other."""
    goodput: dict[float, float] = {}
    for load in LOADS:
        watch.take()
        before = {part: clock.now() for part, clock in watch.clocks.items()}
        outcomes = await poisson(asking, load * capacity, seconds, seed + round(10 * load))
        name = f"{load:g}x"
        for part, clock in watch.clocks.items():
            taken = (clock.now() - before[part]) / len(outcomes)
            report.sample(f"{name}: CPU of the {part} per request", "ms", taken * 1e3)
        add_load(report, name, outcomes, seconds)
        goodput[load] = report.samples(f"{name}: goodput")[-1]
        for part, most in watch.take().items():
            report.sample(f"{name}: memory of the {part}", "MiB", most)
    report.sample(
        "goodput at 3x over goodput at capacity",
        "%",
        100 * goodput[3.0] / goodput[1.0],
        at_least=90.0,
    )


async def measure_patient(
    report: Report, asking: Asking, capacity: float, seconds: float, seed: int
) -> None:
    """Clients without a deadline, who wait for as long as it takes."""
    patient = replace(asking, headers={"authorization": asking.headers["authorization"]})
    outcomes = await poisson(patient, 3 * capacity, seconds, seed, stays=False)
    whole = [outcome for outcome in outcomes if outcome.is_whole]
    name = "3x, clients without a deadline"
    report.sample(f"{name}: answers", "/s", _per_second(outcomes, whole, seconds))
    for status, count in sorted(statuses(outcomes).items()):
        report.sample(f"{name}: {status}", "/s", count / seconds)
    _add_latencies(report, name, whole)


async def measure_tenants(
    report: Report, asking: Asking, capacity: float, seconds: float, seed: int
) -> None:
    """One request at a time, alone and beside a flood of another tenant's."""
    light = replace(asking, headers={"authorization": f"Bearer {LIGHT}"})
    alone = await closed_loop(light, 1, seconds / 2, seed)
    patient = replace(asking, headers={"authorization": asking.headers["authorization"]})
    flood = asyncio.create_task(poisson(patient, 3 * capacity, seconds + 2, seed + 1, stays=False))
    # The flood has filled the mesh by then.
    await asyncio.sleep(2)
    beside = await closed_loop(light, 1, seconds - 1, seed + 2)
    heavy = await flood
    for name, outcomes in (("alone", alone), ("beside a flood", beside)):
        refused = sum(not outcome.is_whole for outcome in outcomes)
        report.sample(f"light tenant {name}: refused or cut off", "", refused)
        _add_latencies(report, f"light tenant {name}", [o for o in outcomes if o.is_whole])
    _add_latencies(report, "the flood's tenant", [o for o in heavy if o.is_whole])


def write_keys(folder: str) -> Path:
    """A key file with both tenants."""
    keys = {"heavy": {"keys": [hash_of(HEAVY)]}, "light": {"keys": [hash_of(LIGHT)]}}
    path = Path(folder) / "keys.yaml"
    path.write_text(yaml.safe_dump({"tenants": keys}), encoding="utf-8")
    return path


async def measure(report: Report, mesh: Mesh, num_rounds: int, seconds: float) -> None:
    """Everything, round by round."""
    headers = {"authorization": f"Bearer {HEAVY}", "x-request-timeout": str(DEADLINE_S)}
    asking = Asking(mesh.port, MODEL.name, VOCAB_SIZE, PROMPT_TOKENS, NUM_TOKENS, headers)
    await closed_loop(asking, NUM_SEATS, 3, seed=1)
    watch = MemoryWatch(mesh)
    try:
        for number in range(num_rounds):
            seed = 10_000_000 * (number + 1)
            answers = await closed_loop(asking, 2 * NUM_SEATS, seconds, seed)
            capacity = _per_second(answers, [a for a in answers if is_good(a)], seconds)
            report.sample("capacity, closed loop", "/s", capacity)
            await measure_round(report, asking, capacity, seconds, watch, seed)
            await measure_patient(report, asking, capacity, seconds, seed)
            await measure_tenants(report, asking, capacity, seconds, seed)
    finally:
        watch.close()


def main() -> None:
    """Measure, print it and write it down."""
    quick, path = arguments("overload", QUESTION)
    num_rounds, seconds = (1, 8.0) if quick else (1, 24.0)
    settings: dict[str, object] = {
        "seats": NUM_SEATS,
        "prompt_tokens": PROMPT_TOKENS,
        "tokens": NUM_TOKENS,
        "deadline_s": DEADLINE_S,
        "seconds": seconds,
        "rounds": num_rounds,
    }
    report = Report("overload", QUESTION, settings)
    with ExitStack() as stack:
        keys = write_keys(stack.enter_context(tempfile.TemporaryDirectory()))
        # A core for the engine; the client shares the others with router and gateway.
        flags = ("--prefill", "0", "--threads", "1", "--max-num-seqs", str(NUM_SEATS))
        mesh = stack.enter_context(Mesh(*flags, "--api-key-file", str(keys)))
        mesh.await_ready()
        asyncio.run(measure(report, mesh, num_rounds, seconds))
    report.print()
    report.write(path)


if __name__ == "__main__":
    main()
