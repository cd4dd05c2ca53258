"""Layers that are told of while a device computes beside the host: only when it has written them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from pagemesh.config import ModelConfig
from pagemesh.engine.accelerator import Event
from pagemesh.engine.runner import LayerProgress
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch, ScheduledSequence
from tests.support.host_accelerator import HostAccelerator, HostEvent
from tests.unit.engine.cuda.device_runners import Made, make_device_runner

PROMPT = tuple(range(40, 60))
BLOCKS = (3, 1, 2, 6, 4)
DEADLINE = 10.0


@dataclass
class LateAccelerator(HostAccelerator):
    """Others see what the device has in memory as it was at the last event that somebody waited for."""

    device_memory: torch.Tensor | None = None
    seen: torch.Tensor | None = None
    num_recorded: int = 0
    _at_event: dict[HostEvent, torch.Tensor] = field(default_factory=dict)

    def record(self) -> HostEvent:
        event = super().record()
        self.num_recorded += 1
        if self.device_memory is not None:
            self._at_event[event] = self.device_memory.clone()
        return event

    def wait(self, event: Event, timeout: float) -> None:
        super().wait(event, timeout)
        assert isinstance(event, HostEvent)
        if event in self._at_event:
            self.seen = self._at_event[event]


@pytest.fixture
def model(demo_model: Path) -> LoadedModel:
    return load_model(ModelConfig(str(demo_model)))


def make_batch() -> Batch:
    return Batch([ScheduledSequence("a", PROMPT, 0, BLOCKS, SamplingParams(temperature=0.0))])


def make_late(model: LoadedModel) -> tuple[Made, LateAccelerator]:
    accelerator = LateAccelerator()
    made = make_device_runner(model, accelerator=accelerator)
    accelerator.device_memory = torch.from_numpy(made.kv.bytes)
    accelerator.seen = torch.zeros_like(accelerator.device_memory)
    return made, accelerator


def join_layers_thread() -> None:
    for thread in threading.enumerate():
        if thread.name == "layers":
            thread.join(DEADLINE)
            assert not thread.is_alive()


def test_a_layer_is_told_of_when_others_can_see_it(model: LoadedModel) -> None:
    made, accelerator = make_late(model)
    seen: dict[int, torch.Tensor] = {}

    def tell(num_layers: int) -> None:
        assert accelerator.seen is not None
        seen[num_layers] = accelerator.seen[:, :, list(BLOCKS)]

    step = made.runner.launch(make_batch(), LayerProgress(frozenset({1, 4}), tell))
    join_layers_thread()
    assert list(seen) == [1, 4]
    step.sample()
    step.result()
    final = torch.from_numpy(made.kv.bytes)[:, :, list(BLOCKS)]
    for num_layers, blocks in seen.items():
        assert torch.equal(blocks[:num_layers], final[:num_layers])
        assert blocks[num_layers - 1].any()
        assert not blocks[num_layers:].any()


def test_the_host_goes_on_while_a_layer_is_waited_for(model: LoadedModel) -> None:
    made, _ = make_late(model)
    step_was_launched = threading.Event()
    told: list[bool] = []
    watch = LayerProgress(frozenset({2}), lambda _: told.append(step_was_launched.wait(DEADLINE)))
    made.runner.launch(make_batch(), watch)
    step_was_launched.set()
    join_layers_thread()
    assert told == [True]


def test_a_step_that_nobody_watches_records_nothing_more(model: LoadedModel) -> None:
    made, accelerator = make_late(model)
    before = accelerator.num_recorded
    made.runner.launch(make_batch())
    plain = accelerator.num_recorded - before
    made.runner.launch(make_batch(), LayerProgress(frozenset({1, 4}), lambda _: None))
    join_layers_thread()
    assert accelerator.num_recorded - before == 2 * plain + 2


def test_of_a_device_that_fails_nothing_is_told(model: LoadedModel) -> None:
    made, accelerator = make_late(model)
    told: list[int] = []
    launched = threading.Event()
    original = accelerator.wait

    def wait(event: Event, timeout: float) -> None:
        assert launched.wait(DEADLINE)
        original(event, timeout)

    accelerator.wait = wait  # type: ignore[method-assign]
    made.runner.launch(make_batch(), LayerProgress(frozenset({1, 4}), told.append))
    accelerator.is_lost = True
    launched.set()
    join_layers_thread()
    assert told == []
