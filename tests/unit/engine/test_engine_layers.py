"""Layers of an export that are told of while their step computes, and steps that fail behind them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from pagemesh.config import SchedulerConfig
from pagemesh.core.engine import StepOutput
from pagemesh.core.kv import KvExport, KvLayout, KvProgress
from pagemesh.core.request import FinishReason
from pagemesh.engine import runner
from pagemesh.engine.engine import EngineCore
from pagemesh.engine.runner import LayerProgress
from pagemesh.errors import InternalError
from pagemesh.scheduler.batch import Batch, StepResult
from pagemesh.scheduler.scheduler import Scheduler
from tests.fakes.engine import VOCAB_SIZE, FakeKv, FakeRunner, FakeStep
from tests.fakes.inbox import DEADLINE, Inbox
from tests.support.kv_bytes import read_kv
from tests.unit.scheduler.builders import make_info, make_request

PROMPT = range(100, 110)
LAYOUT = KvLayout.uniform(block_size=4, num_layers=3, num_kv_heads=1, head_dim=1, dtype="float32")


class LayerRunner(FakeRunner):
    """Stops in front of a layer until it is let on; fails where it is told to."""

    def __init__(self, kv: FakeKv) -> None:
        super().__init__(kv)
        self.before_layer = self._enter
        self.held_layer: int | None = None
        self.failing_layer: int | None = None
        self.wrong_request: str | None = None
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.watches: list[LayerProgress | None] = []

    def launch(self, batch: Batch, watch: LayerProgress | None = None) -> FakeStep:
        self.watches.append(watch)
        return super().launch(batch, watch)

    def execute(self, batch: Batch, watch: LayerProgress | None = None) -> StepResult:
        result = super().execute(batch, watch)
        if self.wrong_request is None:
            return result
        return replace(result, errors={self.wrong_request: InternalError("not finite")})

    def _enter(self, layer: int) -> None:
        if layer == self.failing_layer:
            raise RuntimeError("device lost")
        if layer == self.held_layer:
            self.entered.set()
            assert self.gate.wait(DEADLINE)


class Fixture:
    def __init__(self, *, overlaps: bool) -> None:
        info = replace(make_info(), layout=LAYOUT)
        self.kv = FakeKv(LAYOUT, info.num_blocks)
        self.runner = LayerRunner(self.kv)
        self.scheduler = Scheduler(info, SchedulerConfig(8, 8), vocab_size=VOCAB_SIZE)
        self.engine = EngineCore(info, self.scheduler, self.runner, self.kv, overlaps=overlaps)
        self.inbox = Inbox()

    @property
    def exports(self) -> list[KvExport]:
        return [export for step in self.inbox.steps for export in step.exports]

    def progress(self, request_id: str = "a") -> list[tuple[int, int]]:
        """Tokens and layers."""
        told = [p for step in self.inbox.steps for p in step.progress]
        return [p[1:] for p in told if p.request_id == request_id]

    def all_free(self) -> bool:
        """Asked when the engine has done everything that was asked of it before."""
        for _ in range(2):
            self.engine.pin("settle", []).result(DEADLINE)
            self.engine.release("settle")
        return self.engine.load().num_free_blocks == self.engine.info.num_blocks


@pytest.fixture(params=[False, True], ids=["step by step", "overlapped"])
def layered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fixture]:
    monkeypatch.setattr(runner, "MIN_GROUP_BYTES", 1)
    fixture = Fixture(overlaps=request.param)
    yield fixture
    fixture.runner.gate.set()
    fixture.engine.stop()
    fixture.scheduler.requests.check_integrity()


def test_layers_can_be_read_while_later_ones_are_computed(layered: Fixture) -> None:
    layered.runner.held_layer = 2
    layered.engine.start(layered.inbox)
    layered.engine.submit(make_request("a", PROMPT, export=True))
    assert layered.runner.entered.wait(DEADLINE)
    # Eight tokens fit into a step.
    assert layered.progress() == [(8, 1), (8, 2)]
    (export,) = layered.exports
    read = np.frombuffer(read_kv(layered.engine.kv, export.block_ids[:2], 0, 2), np.float32)
    assert read.reshape(2, 2, 8).tolist() == [[list(PROMPT[:8])] * 2] * 2
    assert np.isnan(layered.kv.memory[2]).all()
    assert layered.inbox.tokens == {}
    layered.runner.gate.set()
    layered.inbox.wait_for_end("a")
    assert layered.progress() == [(8, 1), (8, 2), (8, 3), (10, 1), (10, 2), (10, 3)]
    layered.engine.release("a")
    assert layered.all_free()


def test_the_last_layer_is_told_with_the_token_that_was_sampled_behind_it(
    layered: Fixture,
) -> None:
    layered.engine.start(layered.inbox)
    layered.engine.submit(make_request("a", PROMPT, export=True))
    layered.inbox.wait_for_end("a")
    last = [step for step in layered.inbox.steps if step.outputs][-1]
    assert last.progress == (KvProgress("a", 10, 3),)
    assert len(last.outputs[0].token_ids) == 1


def test_only_steps_with_exports_are_watched(layered: Fixture) -> None:
    layered.engine.start(layered.inbox)
    layered.engine.submit(make_request("plain", 8, max_tokens=3))
    layered.inbox.wait_for_end("plain")
    assert set(layered.runner.watches) == {None}
    layered.engine.submit(make_request("a", 6, export=True))
    layered.inbox.wait_for_end("a")
    assert [watch.num_layers for watch in layered.runner.watches if watch] == [{1, 2}]


def test_of_a_step_that_fails_no_token_is_told_in_all_layers(layered: Fixture) -> None:
    layered.runner.failing_layer = 2
    layered.engine.start(layered.inbox)
    layered.engine.submit(make_request("a", PROMPT, export=True))
    layered.inbox.wait_for_end("a")
    assert layered.inbox.ends["a"].finish_reason is FinishReason.ERROR
    assert layered.progress()[:2] == [(8, 1), (8, 2)]
    assert {num_layers for _, num_layers in layered.progress()} == {1, 2}
    layered.engine.release("a")
    layered.runner.failing_layer = None
    layered.engine.submit(make_request("b", PROMPT, export=True))
    layered.inbox.wait_for_end("b")
    assert layered.inbox.ends["b"].finish_reason is FinishReason.LENGTH
    layered.engine.release("b")
    assert layered.all_free()


def test_of_a_request_that_fails_alone_no_token_is_told_in_all_layers(layered: Fixture) -> None:
    layered.runner.wrong_request = "a"
    for name in "ab":
        layered.engine.submit(make_request(name, 4, export=True))
    layered.engine.start(layered.inbox)
    layered.inbox.wait_for_end("a", "b")
    assert layered.inbox.ends["a"].finish_reason is FinishReason.ERROR
    assert layered.inbox.ends["b"].finish_reason is FinishReason.LENGTH
    assert layered.progress("a") == [(4, 1), (4, 2)]
    assert layered.progress("b") == [(4, 1), (4, 2), (4, 3)]


def test_a_listener_that_fails_within_a_step_does_not_end_it(layered: Fixture) -> None:
    def listener(output: StepOutput) -> None:
        layered.inbox(output)
        if any(p.num_layers < 3 for p in output.progress):
            raise RuntimeError("bug in a service")

    layered.engine.start(listener)
    layered.engine.submit(make_request("a", PROMPT, export=True))
    layered.inbox.wait_for_end("a")
    assert layered.inbox.ends["a"].finish_reason is FinishReason.LENGTH


def test_imported_layers_are_told_at_once_and_computed_ones_while_they_are_computed(
    layered: Fixture,
) -> None:
    layered.runner.held_layer = 1
    layered.engine.start(layered.inbox)
    layered.engine.submit(make_request("a", PROMPT, export=True, await_kv=True))
    grant = layered.inbox.wait_for_grant("a")
    values = np.array(PROMPT[:4], np.float32)
    layered.engine.kv.write(grant.block_ids[:1], 0, 3, np.tile(values, 6).tobytes())
    layered.engine.finish_import("a", 4)
    assert layered.runner.entered.wait(DEADLINE)
    assert layered.progress() == [(4, 3), (10, 1)]
    layered.runner.gate.set()
    layered.inbox.wait_for_end("a")
    assert layered.progress()[-1] == (10, 3)
    assert layered.inbox.ends["a"].num_received_tokens == 4
    layered.engine.release("a")
    assert layered.all_free()
