"""The loop's decisions: what a step computes, and what its result means.

One token budget per step is filled with decodes first, then with chunks of prompts, both in order of
precedence (priority, then arrival). Nothing here knows prefill from decode, resumption or import: a
step computes some of a request's missing KV, and samples when it reaches the last known token.

A step may be planned while the one before is in flight. Then a request's last token may be in flight, too:
the next step is planned with it all the same, unless it is sure to be the last. Only whether it stops the
request is learnt too late, and what was computed behind it is thrown away. (The idea is that of vLLM's
asynchronous scheduling and of SGLang's overlap scheduler.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

from pagemesh.cache.block_hash import Hasher
from pagemesh.cache.block_pool import BlockPool
from pagemesh.cache.swap_space import SwapSpace
from pagemesh.config import SchedulerConfig
from pagemesh.core.engine import EngineInfo, StepOutput
from pagemesh.core.load import EngineLoad
from pagemesh.core.request import FinishReason
from pagemesh.errors import PagemeshError
from pagemesh.scheduler.batch import Batch, StepResult
from pagemesh.scheduler.estimates import (
    GrowthForecast,
    MeanLength,
    PreemptionPolicy,
    StepCosts,
    SwapOrRecompute,
)
from pagemesh.scheduler.kv_cache import KvCacheManager
from pagemesh.scheduler.limits import StopRules
from pagemesh.scheduler.output import StepOutputBuilder
from pagemesh.scheduler.request import Lease, Request, RequestState
from pagemesh.scheduler.request_table import ConstraintGate, RequestTable
from pagemesh.scheduler.step_plan import InFlightSteps, StepPlan


class Scheduler:
    """Owns the requests, their blocks and the order in which they are computed; one thread's.

    Each step is `schedule`, then `update` with what was sampled or `fail`; in between there may be one
    `schedule` of the step after it. Whatever is asked from outside goes to `requests`, between such calls.
    """

    def __init__(
        self,
        info: EngineInfo,
        config: SchedulerConfig,
        *,
        vocab_size: int,
        eos_token_ids: Sequence[int] = (),
        enable_prefix_caching: bool = True,
        num_swap_blocks: int = 0,
        preemption: PreemptionPolicy | None = None,
        forecast: GrowthForecast | None = None,
        costs: StepCosts | None = None,
        hasher: Hasher | None = None,
    ) -> None:
        """`hasher` hashes blocks otherwise than by the engine's model and layout."""
        self._config = config
        self._is_causal = info.causal
        self._pool = BlockPool(info.num_blocks, enable_prefix_caching and info.causal)
        self._swap = SwapSpace(num_swap_blocks)
        self._kv_cache = KvCacheManager(
            self._pool, self._swap, hasher or info.hasher(), info.layout.block_size
        )
        self._costs = costs or StepCosts(config.max_num_batched_tokens)
        self._preemption = preemption or SwapOrRecompute(info.layout.num_bytes, self._costs)
        self._forecast = forecast or MeanLength()
        self._block_size = info.layout.block_size
        self._stop_rules = StopRules(eos_token_ids)
        self._num_preemptions = 0
        self._outputs = StepOutputBuilder(self._pool, self._kv_cache, info.layout.num_layers)
        self._in_flight = InFlightSteps()
        self.requests = RequestTable(
            info, vocab_size, self._pool, self._kv_cache, self._stop_rules, self._outputs
        )
        self.constraints = ConstraintGate(self.requests, self._stop_rules)

    def schedule(self) -> Batch:
        """Choose what to compute now; empty when nothing can be until something is asked.

        The batch's sequences share their block tables with the scheduler: read them before the next call.
        An empty batch takes no `update`.
        """
        self._in_flight.check_room()
        budget = self._config.max_num_batched_tokens
        plan = StepPlan(budget, self._stop_rules, cuts_prompts=self._is_causal)
        prefilling = self._plan_decodes(plan)
        if prefilling is not None:
            self._plan_prefills(plan, prefilling)
        self._in_flight.launch(plan.requests)
        return Batch(tuple(plan.sequences), self._kv_cache.take_moves(), tuple(plan.exports))

    def update(self, batch: Batch, result: StepResult) -> None:
        """The batch, the first in flight, was computed, but for the sequences among the result's errors.

        Those end. Of requests that ended meanwhile nothing is used.
        """
        next_tokens = iter(result.token_ids)
        counts = None if result.num_sampled is None else iter(result.num_sampled)
        errors, pooled, logprobs = result.errors, result.pooled_states, result.logprobs
        for request, sequence in zip(self._in_flight.complete(batch), batch.sequences, strict=True):
            token_id = None
            more: Iterable[int] = ()
            if sequence.sampling is not None:
                token_id = next(next_tokens)
                if counts is not None:
                    more = tuple(islice(next_tokens, next(counts) - 1))
            if request.state is RequestState.FINISHED:
                self.requests.complete(request)
                continue
            if errors and (error := errors.get(sequence.request_id)) is not None:
                self.requests.finish(request, FinishReason.ERROR, error)
                continue
            self._kv_cache.mark_computed(request, sequence.start + len(sequence.token_ids))
            if request.spec.hold_blocks:
                self._outputs.add_progress(request)
            if pooled and (states := pooled.get(sequence.request_id)) is not None:
                vector = request.add_states(states)
                if vector is not None:
                    self.requests.finish(request, FinishReason.STOP, embedding=vector)
            if result.prompt_logprobs:
                request.prompt_logprobs += result.prompt_logprobs.get(sequence.request_id, ())
            if token_id is not None:
                scores = logprobs.get(sequence.request_id) if logprobs else None
                has_ended = self.requests.append_token(request, token_id, scores)
                if more and not has_ended:
                    has_ended = _append_more(self.requests, self._kv_cache, request, more)
                if has_ended:
                    self._forecast.observe(request.num_generated_tokens)

    def fail(self, batch: Batch, error: PagemeshError) -> None:
        """The batch, the first in flight, could not be computed: its requests end with the error."""
        for request in self._in_flight.complete(batch):
            if request.state is RequestState.FINISHED:
                self.requests.complete(request)
            else:
                self.requests.finish(request, FinishReason.ERROR, error)

    def observe(self, batch: Batch, move_seconds: float, compute_seconds: float) -> None:
        """The batch took so long: its moves, and everything else."""
        self._preemption.observe(batch, move_seconds)
        self._costs.observe(batch, compute_seconds)

    def load(self) -> EngineLoad:
        """The present load."""
        active = self.requests.active
        queues = (self.requests.waiting, self.requests.compiling)
        num_queued = sum(map(len, queues))
        running = [r for r in active if r.state is RequestState.RUNNING]
        # All tokens that are missing but the last known one of each decode.
        prefilling = [n for r in running if (n := r.num_uncomputed_tokens) != 1]
        return EngineLoad(
            num_running=len(running),
            num_waiting=num_queued + len(active) - len(running),
            num_queued=num_queued,
            num_free_blocks=self._pool.num_free_blocks,
            num_pending_prefill_tokens=sum(prefilling) + sum(q.num_pending_tokens for q in queues),
            num_swapped=sum(queue.num_swapped for queue in queues),
            num_unused_slots=self._kv_cache.num_unused_slots,
            num_preemptions=self._num_preemptions,
            swap=self._swap.totals,
            grammars=self.constraints.totals,
            prefill_rate=self._costs.rate(num_decodes=len(running) - len(prefilling)),
        )

    def want_snapshot(self) -> None:
        """Have the next output list all cached blocks."""
        self._outputs.want_snapshot()

    def take_output(self, load: EngineLoad, *, load_is_news: bool = True) -> StepOutput | None:
        """Everything that became known since the last call, or None; see `StepOutputBuilder.take`."""
        return self._outputs.take(load, load_is_news=load_is_news)

    def _plan_decodes(self, plan: StepPlan) -> list[Request] | None:
        """Add the decodes; gives the running requests that are not there yet.

        None when nothing more may be planned, because of blocks that a step in flight uses: behind it,
        they may change hands.
        """
        prefilling = []
        for request in self.requests.active:
            # Asked anew for each: making room for one may have preempted another.
            if request.state is not RequestState.RUNNING:
                continue
            num_tokens = len(request.token_ids) - request.num_launched_tokens
            if num_tokens > 1:
                prefilling.append(request)
            elif not plan.is_full and (num_tokens or request.outlives_next_token):
                if not self._make_room(request):
                    return None
                if request.state is RequestState.RUNNING:
                    plan.add(request)
        return prefilling

    def _plan_prefills(self, plan: StepPlan, prefilling: Iterable[Request]) -> None:
        in_progress = deque(prefilling)
        for request in self.requests.waiting:
            while in_progress and in_progress[0].precedence < request.precedence:
                plan.add(in_progress.popleft())
            if request.awaits_leader:
                continue
            if not self._admit(request, plan):
                # Nobody overtakes: a request that needs many blocks would wait for ever.
                break
            if request.state is RequestState.RUNNING:
                plan.add(request)
        for request in in_progress:
            plan.add(request)

    def _admit(self, request: Request, plan: StepPlan) -> bool:
        """Give a waiting request blocks and a place in the batch, if there are any and it could use them now.

        Late is good for a prefill: requests before it may still fill the prefix cache. An import needs
        no budget, and the sooner it begins the better.
        """
        if not (plan.has_room(request) or request.awaits_kv):
            return False
        if len(self.requests.active) >= self._config.max_num_seqs:
            return False
        reservation = self._kv_cache.propose(request)
        if not self._kv_cache.can_take(reservation):
            return False
        if not self._kv_cache.can_take(reservation, self._num_blocks_to_grow(request)):
            return False
        self.requests.waiting.remove(request)
        self.requests.active.add(request)
        self._kv_cache.take(request, reservation)
        if request.awaits_kv:
            request.state = RequestState.WAITING_KV
            request.leases |= Lease.IMPORT
            request.num_received_tokens = request.num_given_tokens - request.num_computed_tokens
            self._outputs.add_grant(request)
        else:
            request.state = RequestState.RUNNING
        if request.spec.hold_blocks:
            self._outputs.add_export(request)
        return True

    def _num_blocks_to_grow(self, request: Request) -> int:
        """Blocks that should remain free for this request and those that run; none if it is alone.

        Without them a full cache would thrash: who was admitted would take blocks from each other.
        """
        active = self.requests.active
        if not len(active):
            return 0
        num_tokens = sum(self._forecast.num_growth_tokens(r) for r in (request, *active))
        return num_tokens // self._block_size

    def _make_room(self, request: Request) -> bool:
        """Get the decoding request a block for its last token from those behind it, or from itself.

        False when the one who should give its blocks is in flight.
        """
        while not self._kv_cache.grow(request):
            victim = self._last_preemptible()
            if victim.num_in_flight:
                return False
            self._preempt(victim)
            if victim is request:
                break
        return True

    def _last_preemptible(self) -> Request:
        # There always is one, the request that wants to grow. Leased blocks are used from outside.
        return next(
            request
            for request in reversed(self.requests.active)
            if request.state is RequestState.RUNNING and not request.leases
        )

    def _preempt(self, request: Request) -> None:
        """Take blocks and place away; the KV comes back later, with the same result. Not in flight."""
        assert not request.num_in_flight, "a step in flight uses the blocks"
        num_tokens, num_blocks = request.num_computed_tokens, len(request.block_ids)
        if self._kv_cache.can_swap_out(request) and self._preemption.should_swap(
            num_tokens, num_blocks
        ):
            self._kv_cache.swap_out(request)
        else:
            self._kv_cache.free(request)
        self._num_preemptions += 1
        request.state = RequestState.WAITING
        self.requests.active.remove(request)
        self.requests.waiting.add(request)


def _append_more(
    requests: RequestTable, kv_cache: KvCacheManager, request: Request, token_ids: Iterable[int]
) -> bool:
    """Of a step's tokens those behind the first, until one ends the request: whether one did."""
    for token_id in token_ids:
        # The KV of the one before it is stored as well.
        kv_cache.mark_computed(request, request.num_computed_tokens + 1)
        if requests.append_token(request, token_id):
            return True
    return False
