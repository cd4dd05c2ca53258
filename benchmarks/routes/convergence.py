"""How soon are hits back when the kvstore, or a worker, has died and been started again?

Four workers behind kv_aware, of which three hold all prefixes; requests come at even times, few enough for the
workers to keep up. A process is killed among them and started again at once, at its old address. A kvstore
comes back empty, and the workers tell it everything. What a dead worker held is lost: the first request for
each of those prefixes misses wherever it goes, and is counted apart from others that do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final

import grpc.aio
from mesh import START_DEADLINE_S
from random_models import make_model
from report import Report
from routes.answers import Answer, Client
from routes.index_view import Known, known_blocks
from routes.policies import (
    BASE,
    MODEL,
    NUM_WORKERS,
    SETTLE_S,
    WARM_UP_CLIENTS,
    start,
)
from routes.prefixes import NUM_PREFIXES, PREFIX_TOKENS, Workload
from routes.processes import Processes
from workload import Request

KV_CACHE_GIB: Final = 0.4
"""Of each worker: three hold all prefixes."""
KVSTORE: Final = "kvstore"
WORKER: Final = "decode-0"
RATE: Final = 3.0
"""Requests per second."""
BEFORE_S, AFTER_S = 8.0, 24.0
REBUILT_AIM_S: Final = 2.0
SEED: Final = 66
_PROBE_S: Final = 0.01


def measure(report: Report, *, quick: bool, until: float, num_rounds: int) -> bool:
    """Each process in turn, round by round, until `time.monotonic()` says so; whether nothing is left."""
    report.settings |= {
        "model": MODEL,
        "workers": NUM_WORKERS,
        "kv_cache_gib_per_worker": KV_CACHE_GIB,
        "prefixes": NUM_PREFIXES,
        "prefix_tokens": PREFIX_TOKENS,
        "requests_per_second": RATE,
        "rounds": num_rounds,
    }
    for number in range(num_rounds):
        for victim in (KVSTORE, WORKER):
            if len(report.samples(f"{victim}: failed requests")) > number:
                continue
            if time.monotonic() >= until:
                return False
            print(f"round {number}, {victim}", flush=True)
            with ExitStack() as stack:
                mesh = stack.enter_context(Processes(make_model(MODEL)))
                start(mesh, [BASE], KV_CACHE_GIB)
                asyncio.run(_Restart(mesh, victim, report).run(Workload(SEED + number)))
    return True


class _Restart:
    """One process of a fresh mesh dies under load and comes back."""

    def __init__(self, mesh: Processes, victim: str, report: Report) -> None:
        self._mesh = mesh
        self._victim = victim
        self._report = report

    async def run(self, workload: Workload) -> None:
        """Once."""
        requests = workload.stream(0, round(RATE * (BEFORE_S + AFTER_S)))
        due = [number / RATE for number in range(len(requests))]
        async with grpc.aio.insecure_channel(self._mesh.address(BASE)) as channel:
            client = Client(channel, is_patient=True)
            await client.in_turn(workload.warm_up(0), WARM_UP_CLIENTS)
            await asyncio.sleep(SETTLE_S)
            running = asyncio.create_task(client.at_times(requests, due))
            await asyncio.sleep(BEFORE_S)
            before = await asyncio.to_thread(self._known)
            await asyncio.to_thread(self._restart, before)
            answers = await running
        self._add(requests, answers, before)

    def _restart(self, before: Mapping[str, Known]) -> None:
        """Kill it and start it again; returns when all that may be known is known again."""
        self._mesh.kill(self._victim)
        self._mesh.launch(self._victim)
        killed = time.monotonic()
        if self._victim != KVSTORE:
            epoch = before[self._victim].info.epoch
            self._await(lambda known: known[self._victim].info.epoch != epoch)
            self._note("from its end until it is a member again", killed)
            return
        self._mesh.await_serving(KVSTORE)
        answering = time.monotonic()
        num_blocks = sum(len(worker.names) for worker in before.values())
        # Some may have been evicted meanwhile.
        self._await(lambda known: sum(len(w.names) for w in known.values()) >= 0.98 * num_blocks)
        self._note("from its end until it knows all blocks", killed, aim=REBUILT_AIM_S)
        self._note("from answering until it knows all blocks", answering)

    def _await(self, reached: Callable[[dict[str, Known]], bool]) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline:
            with suppress(KeyError):
                if reached(self._known()):
                    return
            time.sleep(_PROBE_S)
        raise RuntimeError(f"{self._victim} does not come back:\n{self._mesh.log()}")

    def _note(self, name: str, since: float, aim: float | None = None) -> None:
        self._report.sample(f"{self._victim}: {name}", "s", time.monotonic() - since, aim=aim)

    def _known(self) -> dict[str, Known]:
        return known_blocks(self._mesh.address(KVSTORE))

    def _add(
        self, requests: Sequence[Request], answers: Sequence[Answer], before: Mapping[str, Known]
    ) -> None:
        """Hits and misses before and after."""
        num_before = sum(answer.due < BEFORE_S for answer in answers)
        after = answers[num_before:]
        worker = before[WORKER]
        prefixes = {
            worker.last_name(request.prompt[:PREFIX_TOKENS]) for request in requests[num_before:]
        }
        lost = prefixes & self._lost(before)
        num_lost = len(lost)
        missed_at = []
        for request, answer in zip(requests[num_before:], after, strict=True):
            prefix = worker.last_name(request.prompt[:PREFIX_TOKENS])
            if prefix in lost:
                # It misses once, wherever it goes.
                lost.remove(prefix)
            elif answer.num_tokens and answer.num_cached_tokens < PREFIX_TOKENS:
                missed_at.append(answer.due - BEFORE_S)
        add = self._report.sample
        name = self._victim
        add(f"{name}: hit rate before", "", _hit_rate(answers[:num_before]))
        add(f"{name}: hit rate from then on", "", _hit_rate(after))
        if name != KVSTORE:
            add(f"{name}: requests for what only it had held", "", num_lost)
        add(f"{name}: other requests without a hit", "", len(missed_at))
        add(f"{name}: the last of them came behind its end", "s", max(missed_at, default=0.0))
        add(f"{name}: failed requests", "", sum(not answer.num_tokens for answer in answers))

    def _lost(self, before: Mapping[str, Known]) -> set[bytes]:
        """Hashes of all blocks that nobody else had."""
        if self._victim == KVSTORE:
            return set()
        others = (worker.names for name, worker in before.items() if name != self._victim)
        return set(before[self._victim].names.difference(*others))


def _hit_rate(answers: Sequence[Answer]) -> float:
    """Of those that were given."""
    given = [answer for answer in answers if answer.num_tokens]
    return sum(a.num_cached_tokens for a in given) / sum(a.num_prompt_tokens for a in given)
