"""How requests begin and end, and who keeps their blocks: everything that is asked for from outside.

A request that is over gives its blocks back, unless somebody outside still reads or writes them: then
the end of that lease does. Or the device does, because it ended while a step was in flight: then the completion
of that step does. Each submitted request gets exactly one output with a finish reason. A request with a structured
output enters the queue when its grammar is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from pagemesh.cache.block_pool import BlockPool
from pagemesh.core.engine import EngineInfo
from pagemesh.core.load import GrammarTotals
from pagemesh.core.request import EngineRequest, FinishReason
from pagemesh.errors import InternalError, InvalidRequestError, PagemeshError
from pagemesh.sampling.logits_rules import make_logit_rules
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.structured.constraint import TokenConstraint
from pagemesh.scheduler.kv_cache import KvCacheManager
from pagemesh.scheduler.limits import StopRules, check_fork, check_request, max_total_tokens
from pagemesh.scheduler.output import StepOutputBuilder
from pagemesh.scheduler.request import (
    Lease,
    Pooler,
    Request,
    RequestQueue,
    RequestState,
    WaitingQueue,
)


class RequestTable:
    """All requests and pins that the engine knows.

    `compiling`, `waiting` and `active` hold the live requests; the active ones, which are RUNNING or WAITING_KV, have
    a place in the batch. The scheduler moves requests between the latter two, the
    constraint gate from the first to the second.
    """

    def __init__(
        self,
        info: EngineInfo,
        vocab_size: int,
        pool: BlockPool,
        kv_cache: KvCacheManager,
        stop_rules: StopRules,
        outputs: StepOutputBuilder,
    ) -> None:
        self.compiling = WaitingQueue()
        self.waiting = WaitingQueue()
        self.active = RequestQueue()
        self._queues = {
            RequestState.WAITING_GRAMMAR: self.compiling,
            RequestState.WAITING: self.waiting,
            RequestState.WAITING_KV: self.active,
            RequestState.RUNNING: self.active,
        }
        self._info = info
        self._vocab_size = vocab_size
        self._pool = pool
        self._kv_cache = kv_cache
        self._stop_rules = stop_rules
        self._outputs = outputs
        self._requests: dict[str, Request] = {}
        # Nobody's any more, but steps in flight use their blocks.
        self._in_flight: set[Request] = set()
        self._pins: dict[str, list[int]] = {}
        self._arrivals = count()

    def __getitem__(self, request_id: str) -> Request:
        return self._requests[request_id]

    def submit(self, spec: EngineRequest) -> None:
        """Take a request in; one that can never run is answered with an ERROR output."""
        try:
            self._check_new(spec.request_id)
            check_request(spec, self._info, self._vocab_size, self._stop_rules.eos_token_ids)
            leader = self._requests.get(spec.fork_of or "")
            if leader is not None:
                check_fork(spec, leader.spec)
        except PagemeshError as error:
            self._outputs.add_refusal(spec.request_id, error)
            return
        request = Request(
            spec,
            arrival=next(self._arrivals),
            token_ids=[*spec.prompt_token_ids, *spec.resume_token_ids],
            max_total_tokens=max_total_tokens(spec, self._info.max_model_len),
            leases=Lease.EXPORT if spec.hold_blocks else Lease.NONE,
            awaits_kv=spec.await_kv,
            leader=None if leader is None or leader.spec.hold_blocks else leader,
            rules=make_logit_rules(spec.sampling, spec.prompt_token_ids, spec.resume_token_ids),
            vector=_make_vector(spec, self._info),
        )
        self._requests[request.request_id] = request
        if spec.sampling.structured_outputs is not None:
            request.state = RequestState.WAITING_GRAMMAR
        self._queues[request.state].add(request)
        reason = self._stop_rules.reason(request)
        if reason is not None:
            self.finish(request, reason)

    def cancel(self, request_id: str) -> None:
        """End a request with CANCELLED, unless it is over or unknown; leased blocks stay."""
        request = self._requests.get(request_id)
        if request is not None and request.state is not RequestState.FINISHED:
            self.finish(request, FinishReason.CANCELLED)

    def pin(self, pin_id: str, block_hashes: Sequence[bytes]) -> tuple[int, ...]:
        """Hold the longest cached run of these blocks until `release(pin_id)`."""
        self._check_new(pin_id)
        block_ids = self._pool.longest_cached_prefix(block_hashes)
        self._pool.acquire(block_ids)
        self._pins[pin_id] = block_ids
        return tuple(block_ids)

    def release(self, request_id: str) -> None:
        """End a pin, or an export and its lease; other ids are ignored."""
        if request_id in self._pins:
            self._pool.free(self._pins.pop(request_id))
            return
        request = self._requests.get(request_id)
        if request is not None and request.spec.hold_blocks:
            self.cancel(request_id)
            request.leases &= ~Lease.EXPORT
            self._forget_if_over(request)

    def first_token(
        self, request_id: str, token_id: int, logprobs: TokenLogprobs | None = None
    ) -> None:
        """Report an import's first token, unless the request is over or has generated tokens.

        Nor is it when its log probabilities were asked for and did not come, or when it is no token of the
        vocabulary or none that the structured output allows: it is sampled here then. So is the token of
        an export, whose end it is: that must not come before all KV is here.
        """
        request = self._requests.get(request_id)
        if request is None or request.state is not RequestState.WAITING_KV:
            return
        if request.num_generated_tokens or request.spec.hold_blocks:
            return
        has_logprobs = logprobs is not None or request.spec.sampling.logprobs is None
        if not has_logprobs or not 0 <= token_id < self._vocab_size:
            return
        if request.constraint is not None and not request.constraint.allows(token_id):
            return
        self.append_token(request, token_id, logprobs)

    def finish_import(self, request_id: str, num_valid_tokens: int) -> None:
        """End an import's lease; KV of the first `num_valid_tokens` of prompt and resumed tokens is in the blocks.

        The rest is computed here like any other missing KV, and so is the last known token's: the
        next one is sampled from it.
        """
        request = self._requests.get(request_id)
        if request is None or Lease.IMPORT not in request.leases:
            return
        request.awaits_kv = False
        num_held_tokens = request.num_computed_tokens
        if num_held_tokens <= num_valid_tokens <= request.num_given_tokens:
            request.num_received_tokens = num_valid_tokens - num_held_tokens
            self._kv_cache.mark_computed(request, min(num_valid_tokens, request.num_tokens - 1))
        elif request.state is RequestState.WAITING_KV:
            message = (
                f"import ended with {num_valid_tokens} valid tokens, but {num_held_tokens} were held"
                f" and {request.num_given_tokens} were to come"
            )
            self.finish(request, FinishReason.ERROR, InternalError(message))
        if request.state is RequestState.WAITING_KV:
            request.state = RequestState.RUNNING
            if request.spec.hold_blocks:
                self._outputs.add_progress(request)
        request.leases &= ~Lease.IMPORT
        self._forget_if_over(request)

    def append_token(
        self, request: Request, token_id: int, logprobs: TokenLogprobs | None = None
    ) -> bool:
        """Add and report the next token; ends the request when a stop rule says so, and gives whether."""
        if request.constraint is not None and (error := _refused(request.constraint, token_id)):
            self.finish(request, FinishReason.ERROR, error)
            return True
        request.token_ids.append(token_id)
        if request.rules is not None:
            request.rules.add(token_id)
        if logprobs is not None:
            request.cumulative_logprob += logprobs.logprob
        self._outputs.add_output(request, (token_id,), logprobs=logprobs)
        reason = self._stop_rules.reason(request)
        if reason is not None:
            self.finish(request, reason)
        return reason is not None

    def finish(
        self,
        request: Request,
        reason: FinishReason,
        error: PagemeshError | None = None,
        embedding: bytes | None = None,
    ) -> None:
        """End a live request: report it, free its place in the batch, and its blocks unless they are leased."""
        self._queues[request.state].remove(request)
        request.state = RequestState.FINISHED
        self._outputs.add_output(request, reason=reason, error=error, embedding=embedding)
        self._forget_if_over(request)

    def complete(self, request: Request) -> None:
        """A step with a request that is over was computed: if it was the last one, its blocks are free."""
        if request.num_in_flight == 0 and request in self._in_flight:
            self._in_flight.remove(request)
            self._kv_cache.free(request)

    def live(self) -> Sequence[Request]:
        """All requests that have not ended."""
        return (*self.compiling, *self.waiting, *self.active)

    def check_integrity(self) -> None:
        """Assert that the pool's blocks are held by known requests and pins alone."""
        requests = [*self._requests.values(), *self._in_flight]
        self._pool.check_integrity([*(r.block_ids for r in requests), *self._pins.values()])
        self._kv_cache.check_integrity(requests)
        self.compiling.check_integrity()
        self.waiting.check_integrity()

    def _check_new(self, request_id: str) -> None:
        if request_id in self._requests or request_id in self._pins:
            raise InvalidRequestError(f"request_id {request_id!r} is in use", param="request_id")

    def _forget_if_over(self, request: Request) -> None:
        if request.state is not RequestState.FINISHED or request.leases:
            return
        del self._requests[request.request_id]
        if request.num_in_flight:
            self._in_flight.add(request)
        else:
            self._kv_cache.free(request)


def _make_vector(spec: EngineRequest, info: EngineInfo) -> Pooler | None:
    if not spec.embed:
        return None
    assert info.pooling is not None, "the request was checked"
    pooling = info.pooling
    if spec.normalize is not None:
        pooling = replace(pooling, normalize=spec.normalize)
    return Pooler(pooling, len(spec.prompt_token_ids))


def _refused(constraint: TokenConstraint, token_id: int) -> PagemeshError | None:
    """Why a token that was generated cannot be one of the output; None when it is."""
    try:
        if constraint.accept(token_id):
            return None
    except InvalidRequestError as error:
        return error
    return InternalError(f"token {token_id} is none that the structured output allows")


class ConstraintGate:
    """Until then they are in no queue, so that others overtake them; after that, they have their places."""

    def __init__(self, requests: RequestTable, stop_rules: StopRules) -> None:
        self._requests = requests
        self._stop_rules = stop_rules
        self.totals = GrammarTotals()

    def open(
        self,
        spec: EngineRequest,
        outcome: TokenConstraint | PagemeshError,
        waited: float | None = None,
    ) -> None:
        """A submitted request's constraint, which has accepted its resumed tokens, or why there is none.

        Counted, with the seconds that it waited, and then ignored when the request is over. Told apart by
        the object, as another may have its id by now.
        """
        self.totals = self.totals.plus(waited)
        request = next((r for r in self._requests.compiling if r.spec is spec), None)
        if request is None:
            return
        if isinstance(outcome, PagemeshError):
            self._requests.finish(request, FinishReason.ERROR, outcome)
            return
        request.constraint = outcome
        self._requests.compiling.remove(request)
        request.state = RequestState.WAITING
        self._requests.waiting.add(request)
        reason = self._stop_rules.reason(request)
        if reason is not None:
            self._requests.finish(request, reason)
