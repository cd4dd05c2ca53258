"""Requests, schedulers, and a mesh-free driver that steps a scheduler with the fake runner."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from itertools import cycle

from pagemesh.cache.block_hash import CacheDigest, Hasher, xor_hashes
from pagemesh.config import SchedulerConfig
from pagemesh.core.engine import EngineInfo
from pagemesh.core.kv import KvExport, KvGrant, KvLayout, KvProgress
from pagemesh.core.request import EngineRequest, RequestOutput
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.structured.outputs import StructuredOutputs
from pagemesh.scheduler.batch import NO_MOVES, Batch
from pagemesh.scheduler.estimates import GrowthForecast, PreemptionPolicy
from pagemesh.scheduler.request import Request
from pagemesh.scheduler.scheduler import Scheduler
from tests.fakes.engine import VOCAB_SIZE, FakeKv, FakeRunner, FakeStep


def make_info(
    num_blocks: int = 16, block_size: int = 4, max_model_len: int = 64, max_num_seqs: int = 8
) -> EngineInfo:
    layout = KvLayout.uniform(block_size, num_layers=1, num_kv_heads=1, head_dim=1, dtype="float32")
    return EngineInfo("fake", layout, num_blocks, max_model_len, max_num_seqs)


def make_request(
    request_id: str,
    prompt: int | Sequence[int],
    *,
    max_tokens: int = 4,
    min_tokens: int = 0,
    stop: Sequence[int] = (),
    ignore_eos: bool = False,
    seed: int = 0,
    resume: Sequence[int] = (),
    priority: int = 0,
    salt: bytes = b"",
    export: bool = False,
    await_kv: bool = False,
    structured: StructuredOutputs | None = None,
    fork_of: str | None = None,
) -> EngineRequest:
    """A request; a number as prompt means that many tokens, different for every request_id."""
    if isinstance(prompt, int):
        first = 100 + sum(request_id.encode()) % 400
        prompt = range(first, first + prompt)
    sampling = SamplingParams(
        seed=seed,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=tuple(stop),
        ignore_eos=ignore_eos,
        structured_outputs=structured,
    )
    return EngineRequest(
        request_id,
        tuple(prompt),
        sampling,
        resume_token_ids=tuple(resume),
        priority=priority,
        cache_salt=salt,
        hold_blocks=export,
        await_kv=await_kv,
        fork_of=fork_of,
    )


class FixedWay:
    """A preemption policy that goes through its answers again and again."""

    def __init__(self, *answers: bool) -> None:
        self.answers = cycle(answers)

    def should_swap(self, num_tokens: int, num_blocks: int) -> bool:
        return next(self.answers)

    def observe(self, batch: Batch, move_seconds: float) -> None:
        pass


class FixedGrowth:
    """A forecast that always expects so many tokens; none means that all requests are admitted."""

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.observed: list[int] = []

    def observe(self, num_tokens: int) -> None:
        self.observed.append(num_tokens)

    def num_growth_tokens(self, request: Request) -> int:
        return min(self.num_tokens, request.max_total_tokens - request.num_tokens)


class Device(enum.Enum):
    """When a step is computed that is planned while another one is in flight."""

    NONE = "none"
    """There is no such step: each is computed before the next is planned."""

    EAGER = "eager"
    """As soon as it is launched."""

    LAZY = "lazy"
    """When its result is asked for: everything that the scheduler allowed meanwhile has happened."""


class Stepper:
    """A scheduler, a fake runner and everything that the scheduler made known so far."""

    def __init__(
        self,
        info: EngineInfo | None = None,
        *,
        max_num_batched_tokens: int = 64,
        eos_token_ids: Sequence[int] = (),
        enable_prefix_caching: bool = True,
        num_swap_blocks: int = 0,
        preemption: PreemptionPolicy | None = None,
        forecast: GrowthForecast | None = None,
        hasher: Hasher | None = None,
        device: Device = Device.NONE,
    ) -> None:
        self.info = info or make_info()
        self.device = device
        self.scheduler = Scheduler(
            self.info,
            SchedulerConfig(
                min(self.info.max_num_seqs, max_num_batched_tokens), max_num_batched_tokens
            ),
            vocab_size=VOCAB_SIZE,
            eos_token_ids=eos_token_ids,
            enable_prefix_caching=enable_prefix_caching,
            num_swap_blocks=num_swap_blocks,
            preemption=preemption,
            forecast=forecast or FixedGrowth(0),
            hasher=hasher,
        )
        self.requests = self.scheduler.requests
        self.kv = FakeKv(self.info.layout, self.info.num_blocks)
        self.runner = FakeRunner(self.kv, num_swap_blocks=num_swap_blocks)
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, list[RequestOutput]] = {}
        self.grants: dict[str, KvGrant] = {}
        self.exports: dict[str, KvExport] = {}
        self.progress: dict[str, list[KvProgress]] = {}
        self.cached: set[bytes] = set()
        self.moves = NO_MOVES
        self.on_delivery: Callable[[], object] = lambda: None
        """Called before a step's tokens are computed, when everybody knows of its grants."""
        self.in_flight: tuple[Batch, FakeStep] | None = None

    def submit(self, *requests: EngineRequest) -> None:
        for request in requests:
            self.requests.submit(request)

    def step(self) -> list[tuple[str, int, int]]:
        """One step; gives (request_id, start, number of tokens) of each sequence."""
        batch = self.scheduler.schedule()
        shares = [(s.request_id, s.start, len(s.token_ids)) for s in batch.sequences]
        self.runner.move(batch.moves)
        # Whoever was granted blocks writes into them as soon as it knows, which is after the moves.
        self.collect()
        self.on_delivery()
        self.moves = batch.moves
        if self.device is Device.NONE:
            self.scheduler.update(batch, self.runner.execute(batch))
            self.collect()
            return shares
        earlier, self.in_flight = self.in_flight, None
        if batch.sequences:
            step = self.runner.launch(batch)
            if self.device is Device.EAGER:
                step.compute()
            self.in_flight = batch, step
        if earlier is not None:
            self.complete(*earlier)
        return shares

    def complete(self, batch: Batch, step: FakeStep) -> None:
        """The first batch in flight is computed."""
        self.scheduler.update(batch, step.result())
        self.collect()

    def settle(self) -> None:
        """Complete what is in flight."""
        if self.in_flight is not None:
            (batch, step), self.in_flight = self.in_flight, None
            self.complete(batch, step)

    def run(self, max_steps: int = 1000) -> None:
        """Step until nothing can be computed."""
        for _ in range(max_steps):
            was_in_flight = self.in_flight is not None
            if not self.step() and not was_in_flight:
                return
        raise AssertionError("the scheduler does not come to an end")

    def collect(self) -> None:
        """Take the output and check what must hold after every step."""
        output = self.scheduler.take_output(self.scheduler.load())
        self.requests.check_integrity()
        self.check_flight()
        if output is None:
            return
        for item in output.outputs:
            self.tokens.setdefault(item.request_id, []).extend(item.token_ids)
            if item.finish_reason is not None:
                self.ends.setdefault(item.request_id, []).append(item)
        for grant in output.grants:
            assert grant.request_id not in self.grants
            self.grants[grant.request_id] = grant
        for export in output.exports:
            assert export.request_id not in self.exports
            self.exports[export.request_id] = export
        for progress in output.progress:
            assert progress.request_id in self.exports
            self.progress.setdefault(progress.request_id, []).append(progress)
        assert self.cached.isdisjoint(output.stored_block_hashes)
        assert self.cached.issuperset(output.removed_block_hashes)
        self.cached.update(output.stored_block_hashes)
        self.cached.difference_update(output.removed_block_hashes)
        tells_of_cache = output.stored_block_hashes or output.removed_block_hashes
        if tells_of_cache or output.cache_snapshot is not None:
            assert output.cache_digest == CacheDigest(len(self.cached), xor_hashes(self.cached))
        else:
            assert output.cache_digest is None

    def check_flight(self) -> None:
        """Assert that nobody can be given a block that the step in flight uses."""
        if self.in_flight is not None:
            pool = self.scheduler._pool
            free = {*pool._free_uncached, *pool._free_cached}
            for sequence in self.in_flight[0].sequences:
                assert free.isdisjoint(sequence.block_ids), sequence.request_id

    def write_prompt(self, grant: KvGrant, prompt: Sequence[int], num_tokens: int) -> None:
        """What an importer does: fill the granted blocks behind the held ones."""
        block_size = self.info.layout.block_size
        for position in range(grant.num_held_tokens, num_tokens):
            block_id = grant.block_ids[position // block_size]
            self.kv.memory[:, :, block_id, position % block_size] = prompt[position]

    def check_kv(self, block_ids: Sequence[int], token_ids: Sequence[int]) -> None:
        """Assert that the blocks hold the KV of the tokens."""
        block_size = self.info.layout.block_size
        for position, token_id in enumerate(token_ids):
            block_id = block_ids[position // block_size]
            assert (self.kv.memory[:, :, block_id, position % block_size] == token_id).all()

    @property
    def num_free_blocks(self) -> int:
        return self.scheduler.load().num_free_blocks

    def reason(self, request_id: str) -> str:
        """Finish reason of a request that ended exactly once."""
        (end,) = self.ends[request_id]
        assert end.finish_reason is not None
        return end.finish_reason.value
