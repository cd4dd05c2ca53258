"""`make soak-kv`: thousands of faults in KV streams between real workers, with known answers.

Requests of the demo model run on a decode worker whose prefill workers are behind links that spoil most
streams: bits flip, messages are cut short, lost, doubled, swapped or replayed, streams stall, end and
break; beside that, workers are killed, frozen and cut off. At the end nothing may be wrong, leaked or hung.

Everything is drawn from --seed; what meets what depends on the machine's speed all the same.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.soak.disasters import Disasters
from tests.soak.questions import make_questions
from tests.soak.stage import Stage, running_stage
from tests.soak.traffic import Traffic

LONGEST_STALL_S = 0.2
SHARE_OF_STREAMS = 0.9
QUIET_WITHIN_S = 20.0
"""For the last blocks to come back when nobody asks any more."""


def num_faults(stage: Stage, traffic: Traffic, disasters: Disasters) -> Counter[str]:
    """Faults by kind until now."""
    counts = traffic.tally.caused + disasters.counts
    for link in stage.links:
        counts.update(link.counts())
    return counts


async def count_leaks(stage: Stage) -> int:
    """Blocks that somebody owns although nobody asks for anything; they get some time to come back."""
    deadline = time.monotonic() + QUIET_WITHIN_S
    while True:
        used = [await asyncio.to_thread(worker.num_used_blocks) for worker in stage.workers]
        if not any(used) or time.monotonic() > deadline:
            return sum(used)
        await asyncio.sleep(0.1)


async def soak(stage: Stage, arguments: argparse.Namespace) -> bool:
    """Run it and print the figures; whether nothing was wrong, leaked or hung."""
    started_at = time.monotonic()
    await stage.open_session()
    questions = make_questions(random.Random(arguments.seed))
    traffic = Traffic(stage, questions, arguments.seed)
    await traffic.learn(arguments.concurrency)
    print(
        f"{len(questions)} answers are known after {time.monotonic() - started_at:.0f} s",
        flush=True,
    )
    disasters = Disasters(stage, arguments.seed)
    for number, link in enumerate(stage.links):
        link.plan(arguments.seed + number, SHARE_OF_STREAMS, LONGEST_STALL_S)
    begun_at = time.monotonic()
    num_leaked, num_done, next_disaster = 0, 0, arguments.faults_per_disaster
    while num_done < arguments.faults:
        traffic.stopping = False
        asking = asyncio.create_task(traffic.run(arguments.concurrency))
        pause_at = min(arguments.faults, num_done + arguments.faults_per_check)
        while num_done < pause_at:
            await asyncio.sleep(0.2)
            num_done = num_faults(stage, traffic, disasters).total()
            if num_done >= next_disaster:
                await disasters.next()
                next_disaster += arguments.faults_per_disaster
        traffic.stopping = True
        await asking
        num_leaked += await count_leaks(stage)
        seconds = time.monotonic() - begun_at
        print(
            f"{num_done:6d} faults in {seconds:5.0f} s, {traffic.tally.num_answers} answers, "
            f"{len(traffic.tally.wrong)} wrong, {num_leaked} leaked, {len(traffic.tally.hung)} hung",
            flush=True,
        )
    report(num_faults(stage, traffic, disasters), traffic, time.monotonic() - begun_at)
    await stage.close_session()
    return not (num_leaked or traffic.tally.wrong or traffic.tally.hung)


def report(counts: Counter[str], traffic: Traffic, seconds: float) -> None:
    """The table."""
    print("\nfault            times")
    for kind, count in sorted(counts.items()):
        print(f"{kind:15s} {count:6d}")
    print(f"{'all':15s} {counts.total():6d}   {counts.total() / seconds:.1f} a second")
    tally = traffic.tally
    print(
        f"\n{tally.num_answers} answers, {tally.num_lost} asked again after a decode worker was lost"
    )
    for line in (*tally.wrong[:20], *tally.hung[:20]):
        print(line)


def main() -> int:
    """Exit status 0 when nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=12, help="requests at once")
    parser.add_argument(
        "--faults-per-check", type=int, default=1_000, help="between looks for leaks"
    )
    parser.add_argument("--faults-per-disaster", type=int, default=400)
    parser.add_argument(
        "--share-kv-memory", action="store_true", help="messages that say where KV lies on the host"
    )
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_stage(Path(folder), share_memory=arguments.share_kv_memory) as stage,
    ):
        passed = asyncio.run(soak(stage, arguments))
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
