"""Random submits, embeddings, forks, cancels, imports, exports, pins and releases on pools that are always too small.

Steps are planned one by one, or while another is in flight, which is computed early or late.

Outsiders behave as the lease contract lets them: an importer writes garbage into everything it was
granted until it says how much of it is valid, also after its request was cancelled; exports and pins
are read after every step until they are released.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagemesh.cache.block_hash import hash_blocks, root_hash
from pagemesh.core.engine import Pooling
from pagemesh.core.request import EngineRequest
from pagemesh.sampling.structured.outputs import StructuredOutputs
from tests.fakes.engine import expected_tokens, fake_states
from tests.fakes.grammars import FakeConstraint
from tests.unit.scheduler.builders import (
    Device,
    FixedGrowth,
    FixedWay,
    Stepper,
    make_info,
    make_request,
)

GARBAGE = 999

OUTPUTS = StructuredOutputs.of(regex="a+")

# Few families of prompts, so that prefixes are often shared.
prompts = st.builds(
    lambda first, shared, own: (*range(first, first + shared), *own),
    st.sampled_from([100, 200]),
    st.integers(1, 14),
    st.lists(st.integers(300, 303), max_size=4),
)


def vector(spec: EngineRequest, pooling: Pooling | None) -> bytes:
    """The embedding of a prompt, from its states all at once."""
    assert pooling is not None
    states = fake_states(spec.prompt_token_ids).astype(np.float64)
    expected = states[-1] if pooling.kind == "last" else states.sum(0) / len(states)
    return np.array(expected, "<f4").tobytes()


class SchedulerMachine(RuleBasedStateMachine):
    """A scheduler, and everybody outside who leases blocks of it."""

    @initialize(
        block_size=st.sampled_from([1, 3, 4, 7]),
        num_slots=st.integers(28, 56),
        budget=st.integers(1, 24),
        max_num_seqs=st.integers(1, 5),
        caching=st.booleans(),
        num_swap_blocks=st.sampled_from([0, 3, 8]),
        swaps=st.lists(st.booleans(), min_size=1, max_size=4),
        growth=st.sampled_from([0, 0, 3, 1000]),
        pooling=st.sampled_from([Pooling("last", False), Pooling("mean", False)]),
        device=st.sampled_from(Device),
    )
    def start(
        self,
        block_size: int,
        num_slots: int,
        budget: int,
        max_num_seqs: int,
        caching: bool,
        num_swap_blocks: int,
        swaps: list[bool],
        growth: int,
        pooling: Pooling,
        device: Device,
    ) -> None:
        info = make_info(-(-num_slots // block_size), block_size, 27, max_num_seqs)
        self.stepper = Stepper(
            replace(info, pooling=pooling),
            max_num_batched_tokens=budget,
            enable_prefix_caching=caching,
            num_swap_blocks=num_swap_blocks,
            preemption=FixedWay(*swaps),
            forecast=FixedGrowth(growth),
            device=device,
        )
        self.stepper.on_delivery = self.leases_are_sound
        self.specs: dict[str, EngineRequest] = {}
        self.expected: dict[str, tuple[int, ...]] = {}
        self.importing: set[str] = set()
        self.exporting: set[str] = set()
        self.pins: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.num_pins = 0
        # By request id: grammars that are compiled later, and all constraints, in order of submission.
        self.compiling: list[str] = []
        self.constraints: dict[str, FakeConstraint] = {}

    @rule(
        prompt=prompts,
        kind=st.sampled_from(["plain", "plain", "export", "import", "both", "embed"]),
        num_resumed=st.integers(0, 2),
        max_tokens=st.integers(3, 9),
        priority=st.integers(0, 2),
        seed=st.integers(0, 1),
        structured=st.booleans(),
        stop_at=st.one_of(st.none(), st.integers(0, 5)),
    )
    def submit(
        self,
        prompt: tuple[int, ...],
        kind: str,
        num_resumed: int,
        max_tokens: int,
        priority: int,
        seed: int,
        structured: bool,
        stop_at: int | None,
    ) -> None:
        if kind == "embed":
            spec = EngineRequest(f"r{len(self.specs)}", prompt, priority=priority, embed=True)
            self.take_in(spec, ())
            return
        if kind in ("export", "both"):
            num_resumed, max_tokens = 0, 1
        tokens = expected_tokens(prompt, max_tokens, seed)
        # The token may be one that comes earlier, too; one of the resumed does not stop anything.
        stop = () if stop_at is None else tokens[num_resumed + stop_at :][:1]
        if stop and stop[0] in tokens[:num_resumed]:
            stop = ()
        self.take_in(
            make_request(
                f"r{len(self.specs)}",
                prompt,
                max_tokens=max_tokens,
                stop=stop,
                seed=seed,
                resume=tokens[:num_resumed],
                priority=priority,
                export=kind in ("export", "both"),
                await_kv=kind in ("import", "both"),
                structured=OUTPUTS if structured else None,
            ),
            tokens[: tokens.index(stop[0]) + 1] if stop else tokens,
        )

    @precondition(lambda self: self.specs)
    @rule(
        data=st.data(),
        num_resumed=st.integers(0, 2),
        max_tokens=st.integers(3, 9),
        priority=st.integers(0, 2),
        seed=st.integers(2, 3),
    )
    def fork(
        self, data: st.DataObject, num_resumed: int, max_tokens: int, priority: int, seed: int
    ) -> None:
        """The leader may be anything: running, over, an export, a fork itself."""
        leader = data.draw(st.sampled_from(sorted(self.specs)))
        prompt = self.specs[leader].prompt_token_ids
        tokens = expected_tokens(prompt, max_tokens, seed)
        self.take_in(
            make_request(
                f"r{len(self.specs)}",
                prompt,
                max_tokens=max_tokens,
                seed=seed,
                resume=tokens[:num_resumed],
                priority=priority,
                fork_of=leader,
            ),
            tokens,
        )

    @rule(num_compiled=st.integers(0, 2))
    def step(self, num_compiled: int) -> None:
        """Requests that are over get their grammars, too."""
        for request_id in self.compiling[:num_compiled]:
            spec = self.specs[request_id]
            constraint = FakeConstraint(accepted=list(spec.resume_token_ids))
            self.constraints[request_id] = constraint
            self.stepper.scheduler.constraints.open(spec, constraint)
        del self.compiling[:num_compiled]
        self.stepper.step()

    @precondition(lambda self: self.specs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.stepper.requests.cancel(data.draw(st.sampled_from(sorted(self.specs))))

    @precondition(lambda self: self.granted())
    @rule(data=st.data())
    def report_first_token(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(self.granted()))
        spec = self.specs[request_id]
        first = expected_tokens(spec.prompt_token_ids, 1, spec.sampling.seed)[0]
        self.stepper.requests.first_token(request_id, first)

    @precondition(lambda self: self.granted())
    @rule(data=st.data())
    def finish_import(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(self.granted()))
        held = self.stepper.grants[request_id].num_held_tokens
        length = len(self.specs[request_id].prompt_token_ids)
        self.end_import(request_id, data.draw(st.integers(held, length)))

    @precondition(lambda self: self.exporting)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.exporting)))
        self.exporting.remove(request_id)
        self.stepper.requests.release(request_id)

    @rule(prompt=prompts)
    def pin(self, prompt: tuple[int, ...]) -> None:
        layout = self.stepper.info.layout
        root = root_hash("fake", layout.block_size, layout.dtype)
        pin_id, self.num_pins = f"pin{self.num_pins}", self.num_pins + 1
        block_ids = self.stepper.requests.pin(pin_id, hash_blocks(root, prompt, layout.block_size))
        self.pins[pin_id] = (block_ids, prompt)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        pin_id = data.draw(st.sampled_from(sorted(self.pins)))
        del self.pins[pin_id]
        self.stepper.requests.release(pin_id)

    @invariant()
    def leases_are_sound(self) -> None:
        stepper = self.stepper
        stepper.collect()
        for request_id in self.granted():  # the importer is still at work
            spec, grant = self.specs[request_id], stepper.grants[request_id]
            garbage = [GARBAGE] * len(spec.prompt_token_ids)
            stepper.write_prompt(grant, garbage, len(garbage))
        for request_id in self.exporting & stepper.progress.keys():
            progress = stepper.progress[request_id][-1]
            prompt = self.specs[request_id].prompt_token_ids
            block_ids = stepper.exports[request_id].block_ids
            stepper.check_kv(block_ids, prompt[: progress.num_tokens])
        for block_ids, prompt in self.pins.values():
            stepper.check_kv(block_ids, prompt[: len(block_ids) * stepper.info.layout.block_size])

    def teardown(self) -> None:
        if not hasattr(self, "stepper"):
            return
        stepper = self.stepper
        for pin_id in self.pins:
            stepper.requests.release(pin_id)
        self.pins.clear()
        self.step(len(self.compiling))
        # Every turn either computes a token or ends a lease.
        for _ in range(1000):
            was_in_flight = stepper.in_flight is not None
            computed = bool(stepper.step()) or was_in_flight
            ended = sorted(self.exporting & stepper.ends.keys())
            granted = self.granted()
            for request_id in ended:
                stepper.requests.release(request_id)
            self.exporting.difference_update(ended)
            for request_id in granted:
                self.end_import(request_id, len(self.specs[request_id].prompt_token_ids))
            if not (computed or ended or granted):
                break
        self.leases_are_sound()
        for request_id in self.specs:
            reason = stepper.reason(request_id)
            if self.specs[request_id].embed and reason == "stop":
                (end,) = stepper.ends[request_id]
                assert end.embedding == vector(self.specs[request_id], stepper.info.pooling)
                assert stepper.tokens[request_id] == []
                continue
            tokens = tuple(stepper.tokens[request_id])
            expected = self.expected[request_id]
            assert reason in ("length", "stop", "cancelled")
            is_whole = reason != "cancelled"
            assert tokens == expected if is_whole else tokens == expected[: len(tokens)]
            if is_whole:
                last = (*self.specs[request_id].resume_token_ids, *tokens)[-1:]
                stops = last == self.specs[request_id].sampling.stop_token_ids
                assert (reason == "stop") == stops
            if tokens and request_id in self.constraints:
                known = self.specs[request_id].resume_token_ids
                assert self.constraints[request_id].accepted == [*known, *tokens]
        assert stepper.num_free_blocks == stepper.info.num_blocks
        assert len(stepper.requests.waiting) == len(stepper.requests.active) == 0
        assert len(stepper.requests.compiling) == 0

    def take_in(self, spec: EngineRequest, tokens: tuple[int, ...]) -> None:
        self.specs[spec.request_id] = spec
        self.expected[spec.request_id] = tokens[len(spec.resume_token_ids) :]
        if spec.hold_blocks:
            self.exporting.add(spec.request_id)
        if spec.await_kv:
            self.importing.add(spec.request_id)
        if spec.sampling.structured_outputs is not None:
            self.compiling.append(spec.request_id)
        self.stepper.submit(spec)

    def granted(self) -> list[str]:
        """Imports whose lease is open."""
        return sorted(self.importing & self.stepper.grants.keys())

    def end_import(self, request_id: str, num_valid_tokens: int) -> None:
        grant = self.stepper.grants[request_id]
        prompt = self.specs[request_id].prompt_token_ids
        self.stepper.write_prompt(grant, prompt, num_valid_tokens)
        self.stepper.requests.finish_import(request_id, num_valid_tokens)
        self.importing.remove(request_id)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=200,
    stateful_step_count=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
