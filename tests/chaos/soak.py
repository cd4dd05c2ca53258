"""`make soak`: load with known answers, and a random fault of the matrix every few seconds.

The load is a share of what the mesh was measured to do. One fault at a time, and never one that leaves
nobody to do a part's work but the gateway, of which there is one. Every answer must be that of the undisturbed
mesh; an error is excused only when it came while the gateway or a router was hit, whose connections are lost.
At quiet points nothing may be held. Needs root. Everything is drawn from --seed; what meets what
depends on the machine's speed all the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from benchmarks.kv.namespaces import why_not
from pagemesh.router.tenants.keys import hash_of
from tests.chaos.faults import FAULTS, Victim
from tests.chaos.findings import ROOT
from tests.chaos.matrix import SENSELESS
from tests.chaos.site import DECODERS, PREFILL, ROUTERS, VALKEY, Site, running_site
from tests.chaos.soak_traffic import Tally, Traffic, make_questions
from tests.chaos.soak_watch import Watch

FILE: Final = ROOT / "benchmarks/results/soak.json"
KEYS: Final = {"acme": "pm-acme-0123456789abc", "other": "pm-other-0123456789abc"}
KVSTORES: Final = ("kvstore-0", "kvstore-1")
TARGETS: Final[dict[str, tuple[str, ...]]] = {
    "gateway": ("gateway",),
    "router": ROUTERS,
    "prefill worker": (PREFILL,),
    "prefill engine": (f"{PREFILL} engine",),
    "decode worker": DECODERS,
    "decode engine": tuple(f"{name} engine" for name in DECODERS),
    "kvstore replica": KVSTORES,
    "Valkey": (VALKEY,),
}
PAIRS: Final = (ROUTERS, DECODERS, KVSTORES)
FRONT: Final = ("gateway", *ROUTERS)
"""Whose fall clients may see."""
AFTERMATH_S: Final = 3.0
"""After the end of a fault, in which it may still be seen."""
QUIET_S: Final = 300.0
"""Between two quiet points."""
NUM_AT_ONCE: Final = 24
FAULT_EVERY_S: Final = 5.0
LONGEST_HOLD_S: Final = 4.0


class Misfortune:
    """Does one fault at a time, with the traffic going on."""

    def __init__(self, site: Site, traffic: Traffic, seed: int) -> None:
        self._site = site
        self._traffic = traffic
        self._draws = random.Random(seed)
        self._in_front: list[tuple[float, float]] = []
        self.counts: Counter[str] = Counter()
        self.num_running: list[int] = []
        """Requests in flight at each blow."""

    def is_excused(self, since: float, until: float) -> bool:
        """Whether the gateway or a router was hit between two times."""
        return any(since <= end + AFTERMATH_S and begin <= until for begin, end in self._in_front)

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            begun_at = time.monotonic()
            await asyncio.to_thread(self._strike)
            rest = max(0.0, FAULT_EVERY_S - (time.monotonic() - begun_at))
            try:
                await asyncio.wait_for(stopping.wait(), rest)
            except TimeoutError:
                continue

    def _strike(self) -> None:
        row, fault_name, name = self._draw()
        fault = FAULTS[fault_name](Victim(self._site, name, 0))
        hold = 0.0 if fault.hold_s == 0.0 else self._draws.uniform(0.3, LONGEST_HOLD_S)
        begin, num_running = time.monotonic(), self._traffic.num_running
        print(f"  {name}: {fault_name}, {hold:.1f} s, {num_running} requests run", flush=True)
        self.num_running.append(num_running)
        place = len(self._in_front)
        if name in FRONT:
            self._in_front.append((begin, begin + hold))
        fault.begin()
        time.sleep(hold)
        fault.end()
        fault.wait_until_over()
        if name in FRONT:
            self._in_front[place] = (begin, time.monotonic())
        self.counts[f"{row}, {fault_name}"] += 1

    def _draw(self) -> tuple[str, str, str]:
        while True:
            row = self._draws.choice(list(TARGETS))
            fault = self._draws.choice(list(FAULTS))
            name = self._draws.choice(TARGETS[row])
            part = name.removesuffix(" engine")
            partners = [p for pair in PAIRS if part in pair for p in pair]
            if (row, fault) not in SENSELESS and all(self._is_up(p) for p in [part, *partners]):
                return row, fault, name
            time.sleep(0.01)

    def _is_up(self, part: str) -> bool:
        """Whether its supervisor has nothing to wait for."""
        output = self._site.mesh.output
        num_ends = output.count(f"\n{part} ended") + output.count(f"\n{part} was killed")
        return num_ends == output.count(f"\n{part} serves again")


async def soak(site: Site, options: argparse.Namespace) -> dict[str, Any]:
    """Run it; the figures."""
    questions = make_questions(random.Random(options.seed))
    tenants = [{"authorization": f"Bearer {key}"} for key in KEYS.values()]
    traffic = Traffic(site.mesh.url, questions, tenants, options.seed)
    misfortune = Misfortune(site, traffic, options.seed)
    traffic.is_excused = misfortune.is_excused
    capacity = await traffic.learn(NUM_AT_ONCE)
    rate = capacity * options.load
    print(f"{capacity:.1f} requests a second undisturbed, {rate:.1f} from now on", flush=True)
    watch = Watch(site)
    leaks: list[str] = []
    end_at = time.monotonic() + options.minutes * 60
    begun_at = time.monotonic()
    while time.monotonic() < end_at:
        stopping = asyncio.Event()
        watching = asyncio.create_task(watch.run(stopping))
        asking = asyncio.create_task(traffic.run(rate, NUM_AT_ONCE, stopping))
        striking = asyncio.create_task(misfortune.run(stopping))
        await asyncio.sleep(min(QUIET_S, max(1.0, end_at - time.monotonic())))
        stopping.set()
        await asyncio.gather(striking, asking, watching)
        try:
            await asyncio.to_thread(site.wait_until_whole)
        except AssertionError as error:
            leaks.append(str(error))
        await asyncio.to_thread(watch.quiet)
        say(traffic.tally, misfortune, watch, leaks, time.monotonic() - begun_at)
    await traffic.close()
    return figures(traffic.tally, misfortune, watch, leaks) | {
        "minutes": options.minutes,
        "capacity_per_s": round(capacity, 2),
        "rate_per_s": round(rate, 2),
        "seed": options.seed,
    }


def say(
    tally: Tally, misfortune: Misfortune, watch: Watch, leaks: list[str], seconds: float
) -> None:
    """A line."""
    print(
        f"{seconds:5.0f} s: {misfortune.counts.total()} faults, {tally.num_requests} requests, "
        f"{len(tally.wrong)} wrong, {len(tally.hung)} hung, {len(leaks)} leaks, "
        f"{len(tally.inexcusable)} failed without excuse, {tally.errors.total()} with one, "
        f"{watch.num_resumed:.0f} resumed, longest pause {max(tally.pauses, default=0):.2f} s",
        flush=True,
    )


def figures(tally: Tally, misfortune: Misfortune, watch: Watch, leaks: list[str]) -> dict[str, Any]:
    """Everything that is to be known."""
    pauses, durations = sorted(tally.pauses) or [0.0], sorted(tally.durations) or [0.0]
    return {
        "requests": tally.num_requests,
        "whole": tally.num_whole,
        "cancelled": tally.num_cancelled,
        "excused_errors": dict(tally.errors),
        "inexcusable": tally.inexcusable[:20],
        "wrong": tally.wrong[:20],
        "hung": tally.hung[:20],
        "leaks": leaks,
        "resumed": watch.num_resumed,
        "longest_pause_s": round(pauses[-1], 3),
        "p99_of_longest_pauses_s": round(pauses[int(0.99 * (len(pauses) - 1))], 3),
        "seconds_per_request": {
            "median": round(durations[len(durations) // 2], 3),
            "most": round(durations[-1], 3),
        },
        "in_flight_at_a_blow": round(statistics.mean(misfortune.num_running or [0]), 1),
        "faults": dict(sorted(misfortune.counts.items())),
        "memory": watch.memory(),
    }


def main() -> int:
    """Exit status 0 when nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.chaos.soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--load", type=float, default=0.8, help="share of the measured capacity")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=FILE)
    options = parser.parse_args()
    # Namespaces and disks go with whoever made them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    if reason := why_not():
        sys.exit(f"the soak cannot run here: {reason}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        keys = folder / "keys.json"
        keys.write_text(
            json.dumps({"tenants": {who: {"keys": [hash_of(key)]} for who, key in KEYS.items()}})
        )
        with running_site(
            folder,
            shared_index=True,
            flags=["--api-key-file", str(keys)],
            headers={"authorization": f"Bearer {KEYS['acme']}"},
            disk_kib=64 * 1024,
        ) as site:
            found = asyncio.run(soak(site, options))
    options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    is_passed = not any(found[name] for name in ("wrong", "hung", "leaks", "inexcusable"))
    print(json.dumps(found, indent=1))
    print("passed" if is_passed else "FAILED")
    return 0 if is_passed else 1


if __name__ == "__main__":
    sys.exit(main())
