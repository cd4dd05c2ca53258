"""A decode worker, two prefill workers, their requests and all streams between them, without a network."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from pagemesh.core.engine import EngineInfo
from pagemesh.core.request import EngineRequest
from tests.fakes.engine import expected_tokens
from tests.ownership.events import Act, Break, Cancel, Event, Kill, Route, Submit, Who, draw_prompt
from tests.ownership.simulated_stream import Receiver, Sender
from tests.ownership.simulated_worker import SimulatedWorker
from tests.unit.scheduler.builders import Device, make_info, make_request

DECODE, PREFILLS = 0, (1, 2)
MAX_LENGTH = 27
MAX_TURNS = 3000


@dataclass(frozen=True)
class Settings:
    """How the workers are made; blocks are always few."""

    infos: Sequence[EngineInfo]
    budget: int
    device: Device
    num_swap_blocks: int
    growth: int

    @classmethod
    def draw(cls, rng: random.Random) -> Settings:
        block_size = rng.choice((1, 3, 4, 7))
        max_num_seqs = rng.randrange(1, 7)
        return cls(
            [
                make_info(
                    -(-rng.randrange(27, 50) // block_size), block_size, MAX_LENGTH, max_num_seqs
                )
                for _ in (DECODE, *PREFILLS)
            ],
            rng.choice((2, 3, 6, 12, 24)),
            rng.choice(list(Device)),
            rng.choice((0, 3, 8)),
            rng.choice((0, 0, 3)),
        )


@dataclass
class Submitted:
    """A request of a client."""

    spec: EngineRequest
    home: SimulatedWorker
    expected: tuple[int, ...]
    was_cancelled: bool = False
    receiver: Receiver | None = None


@dataclass
class Mesh:
    """Plays events, and says whether everything ended well."""

    settings: Settings
    workers: list[SimulatedWorker] = field(default_factory=list)
    requests: list[Submitted] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workers += [self._incarnation(index) for index in (DECODE, *PREFILLS)]

    def play(self, event: Event) -> None:
        match event:
            case Submit():
                self._submit(event)
            case Act():
                for _ in range(event.num_turns):
                    self._act(event)
            case Cancel():
                self._cancel(event.number)
            case Break():
                streams = [r.sender for r in self._receivers() if r.sender is not None]
                if streams:
                    streams[event.number % len(streams)].was_closed = True
            case Kill():
                self.workers[event.worker].is_alive = False
                self.workers[event.worker] = self._incarnation(event.worker)

    def finish(self) -> None:
        """Let everything come to its end, and check that it did."""
        for _ in range(MAX_TURNS):
            if not self._everybody_acts():
                break
        else:
            raise AssertionError("the mesh does not come to rest")
        assert self._receivers() == [], "an import was not given back"
        for worker in self.workers:
            worker.check_free()
        for request in self.requests:
            _check_end(request)

    def _submit(self, event: Submit) -> None:
        leader = f"r{len(self.requests)}"
        spec = make_request(
            leader,
            event.prompt,
            max_tokens=event.max_tokens,
            seed=event.seed,
            priority=event.priority,
        )
        self._start(spec, event.stops, event.worker, event.routes)
        for number in range(event.num_forks):
            sampling = replace(spec.sampling, seed=2 + number)
            fork = replace(spec, request_id=f"{leader}.{number}", fork_of=leader, sampling=sampling)
            self._start(fork, event.stops, event.worker, ())

    def _start(
        self, spec: EngineRequest, stops: bool, worker: int, routes: Sequence[Route]
    ) -> None:
        tokens = expected_tokens(
            spec.prompt_token_ids, spec.sampling.max_tokens, spec.sampling.seed
        )
        if stops:
            tokens = tokens[:1]
            spec = replace(spec, sampling=replace(spec.sampling, stop_token_ids=tokens))
        home = self.workers[worker]
        request = Submitted(replace(spec, await_kv=bool(routes)), home, tokens)
        if routes:
            request.receiver = Receiver(home, self.workers, request.spec, routes)
        self.requests.append(request)
        home.submit(request.spec)

    def _cancel(self, index: int) -> None:
        """Also one that is over and keeps a lease, or just got its last token."""
        requests = [r for r in self.requests if r.home.is_alive]
        if requests:
            # The latest first: most of the others are over.
            request = requests[-1 - index % len(requests)]
            request.was_cancelled = True
            request.home.cancel(request.spec.request_id)

    def _act(self, event: Act) -> None:
        match event.who:
            case "everybody":
                self._everybody_acts()
            case "worker":
                self.workers[event.number % len(self.workers)].step()
            case "sender":
                if senders := self._senders():
                    senders[event.number % len(senders)].act()
            case "receiver":
                if receivers := self._receivers():
                    receivers[event.number % len(receivers)].act()

    def _everybody_acts(self) -> bool:
        acted = [worker.step() for worker in self.workers]
        acted += [sender.act() for sender in self._senders()]
        acted += [receiver.act() for receiver in self._receivers()]
        return any(acted)

    def _receivers(self) -> list[Receiver]:
        """Those that are at work."""
        own = [r.receiver for r in self.requests]
        sources = [sender.source for sender in self._all_senders()]
        return [r for r in (*own, *sources) if r is not None and not r.is_over]

    def _senders(self) -> list[Sender]:
        """Those that are at work."""
        return [sender for sender in self._all_senders() if not sender.has_ended]

    def _all_senders(self) -> list[Sender]:
        receivers = [r.receiver for r in self.requests if r.receiver is not None]
        senders = [sender for receiver in receivers for sender in receiver.senders]
        return senders + [s for sender in senders if sender.source for s in sender.source.senders]

    def _incarnation(self, index: int) -> SimulatedWorker:
        settings = self.settings
        return SimulatedWorker(
            settings.infos[index],
            settings.budget,
            settings.device,
            settings.num_swap_blocks,
            settings.growth,
        )


def _check_end(request: Submitted) -> None:
    stepper, request_id = request.home.stepper, request.spec.request_id
    tokens = tuple(stepper.tokens.get(request_id, ()))
    if not request.home.is_alive:
        # Its session broke: what had come until then was right.
        assert tokens == request.expected[: len(tokens)], request_id
        return
    reason = stepper.reason(request_id)
    if reason == "cancelled":
        assert request.was_cancelled, request_id
        assert tokens == request.expected[: len(tokens)], request_id
    else:
        assert reason in ("stop", "length"), stepper.ends[request_id]
        assert tokens == request.expected, request_id


def draw_event(rng: random.Random, block_size: int) -> Event:
    """Mostly, somebody goes on."""
    index = rng.randrange(8)
    roll = rng.random()
    if roll < 0.22:
        prompt = draw_prompt(rng, block_size, MAX_LENGTH // block_size - 1, 2)[: MAX_LENGTH - 10]
        # A prefill worker has some requests of its own, so that it decodes, too.
        worker = rng.choice((DECODE, DECODE, DECODE, *PREFILLS, PREFILLS[0]))
        num_routes = 0 if worker else rng.choice((0, 1, 1, 1, 2, 3))
        return Submit(
            prompt,
            max_tokens=rng.choice((1, 2, 4, 9)),
            seed=rng.randrange(2),
            priority=rng.randrange(3),
            num_forks=rng.choice((0, 0, 0, 0, 1, 2)),
            stops=rng.random() < 0.2,
            routes=tuple(_draw_route(rng) for _ in range(num_routes)),
            worker=worker,
        )
    if roll < 0.28:
        return Cancel(index)
    if roll < 0.32:
        return Break(index)
    if roll < 0.335:
        return Kill(rng.choice((DECODE, *PREFILLS, *PREFILLS)))
    who: Who = rng.choice(get_args(Who))
    return Act(who, index, 1 if who == "everybody" else rng.randrange(1, 7))


def _draw_route(rng: random.Random) -> Route:
    if rng.random() < 0.4:
        return Route("fetch", rng.choice((DECODE, *PREFILLS)))
    source = rng.choice((DECODE, *PREFILLS)) if rng.random() < 0.5 else None
    return Route("prefill", rng.choice(PREFILLS), source)
