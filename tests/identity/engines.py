"""Real engines over the demo model that share one copy of the weights."""

from __future__ import annotations

import queue
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from pagemesh.config import SchedulerConfig
from pagemesh.core.engine import EngineInfo, StepOutput
from pagemesh.core.request import EngineRequest, FinishReason, RequestOutput
from pagemesh.engine.constraints import load_backend
from pagemesh.engine.engine import EngineCore
from pagemesh.models.loader import LoadedModel
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.structured.compiler import GrammarCompiler
from pagemesh.scheduler.batch import Batch
from pagemesh.scheduler.estimates import PreemptionPolicy
from pagemesh.scheduler.request import RequestState
from pagemesh.scheduler.scheduler import Scheduler
from tests.support.machine import MakeRunner, on_cpu
from tests.unit.scheduler.builders import FixedGrowth

DEADLINE = 60.0
CHECK_INTERVAL = 0.5
Tokens = dict[str, tuple[int, ...]]


class PreemptingScheduler(Scheduler):
    """Preempts the last running request before the batches in `preempt_at`; 0 is the first."""

    def __init__(
        self, info: EngineInfo, config: SchedulerConfig, preempt_at: Container[int], **settings: Any
    ) -> None:
        super().__init__(info, config, **settings)
        self._preempt_at = preempt_at
        self.num_batches = 0
        self.num_unknown_tokens = 0

    def schedule(self) -> Batch:
        running = [r for r in self.requests.active if r.state is RequestState.RUNNING]
        if self.num_batches in self._preempt_at and running and not running[-1].leases:
            if running[-1].num_in_flight:
                # As a scheduler that needs its blocks does: the step in flight completes first.
                return Batch(())
            self._preempt(running[-1])
        batch = super().schedule()
        self.num_batches += bool(batch.sequences)
        self.num_unknown_tokens += sum(s.previous_row is not None for s in batch.sequences)
        return batch


class Peer:
    """An engine, its scheduler and the outputs that it delivered."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        num_blocks: int = 1024,
        block_size: int = 16,
        max_num_batched_tokens: int = 512,
        enable_prefix_caching: bool = True,
        preempt_at: Container[int] = (),
        preemption: PreemptionPolicy | None = None,
        num_swap_blocks: int = 0,
        overlaps: bool = False,
        make_runner: MakeRunner = on_cpu,
    ) -> None:
        layout = model.block_layout(block_size)
        config = SchedulerConfig(16, max_num_batched_tokens)
        info = EngineInfo(
            model.fingerprint,
            layout,
            num_blocks,
            model.max_model_len,
            config.max_num_seqs,
            model.pooling,
            model.generates,
            model.shape.causal,
        )
        self.scheduler = PreemptingScheduler(
            info,
            config,
            preempt_at,
            vocab_size=model.vocab_size,
            eos_token_ids=model.eos_token_ids,
            enable_prefix_caching=enable_prefix_caching,
            num_swap_blocks=num_swap_blocks,
            preemption=preemption,
            # Everybody is admitted: when the blocks are few, requests must preempt each other.
            forecast=FixedGrowth(0),
        )
        runner, kv = make_runner(model, config, block_size, num_blocks, num_swap_blocks)
        self._grammars = GrammarCompiler(partial(load_backend, model))
        self.engine = EngineCore(
            info, self.scheduler, runner, kv, self._grammars, overlaps=overlaps
        )
        self.ends: dict[str, RequestOutput] = {}
        self.tokens: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[TokenLogprobs]] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprobs]] = {}

    def note(self, output: StepOutput) -> None:
        for item in output.outputs:
            self.tokens.setdefault(item.request_id, []).extend(item.token_ids)
            self.logprobs.setdefault(item.request_id, []).extend(item.logprobs or ())
            self.prompt_logprobs.setdefault(item.request_id, []).extend(item.prompt_logprobs or ())
            if item.finish_reason is not None:
                assert item.finish_reason is not FinishReason.ERROR, item.error
                assert item.request_id not in self.ends
                self.ends[item.request_id] = item

    def submit_ready(self, requests: Sequence[EngineRequest]) -> None:
        """Submit with compiled grammars; an engine that is not started yet then has them all at once."""
        for request in requests:
            if (outputs := request.sampling.structured_outputs) is not None:
                self._grammars.compile(outputs).result(DEADLINE)
            self.engine.submit(request)

    def forget(self) -> None:
        """Begin anew with what was noted."""
        for known in (self.ends, self.tokens, self.logprobs, self.prompt_logprobs):
            known.clear()

    def close(self) -> None:
        self.engine.stop()
        self.scheduler.requests.check_integrity()
        assert self.engine.load().num_free_blocks == self.engine.info.num_blocks


Steps = queue.Queue[tuple[Peer, StepOutput]]
"""What peers make known, in order."""


@contextmanager
def running(peer: Peer, *, listener_queue: Steps) -> Iterator[Peer]:
    """The peer's engine, started; nothing is left in it at the end."""
    peer.engine.start(lambda output: listener_queue.put((peer, output)))
    try:
        yield peer
    finally:
        peer.engine.stop()
    peer.close()


def generate(peer: Peer, requests: Sequence[EngineRequest]) -> Tokens:
    """Tokens of all requests, computed by one engine in one batch that has them all from the start on."""
    peer.submit_ready(requests)
    steps: Steps = queue.Queue()
    with running(peer, listener_queue=steps):
        wait_for_ends(peer, steps, len(requests))
    return {request_id: tuple(tokens) for request_id, tokens in peer.tokens.items()}


def next_step(steps: Steps, *peers: Peer) -> tuple[Peer, StepOutput]:
    """What one of the running peers makes known next; fails when an engine died instead."""
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            return steps.get(timeout=CHECK_INTERVAL)
        except queue.Empty:
            assert time.monotonic() < deadline
            for peer in peers:
                peer.engine.check()


def wait_for_ends(peer: Peer, steps: Steps, num_requests: int) -> None:
    """Note what a running peer makes known until so many requests have ended."""
    while len(peer.ends) < num_requests:
        peer.note(next_step(steps, peer)[1])
