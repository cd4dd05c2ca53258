"""Of which layers a step tells while it computes, and how what is told reaches the listener."""

from __future__ import annotations

import threading

import pytest

from pagemesh.core.engine import StepOutput
from pagemesh.core.kv import KvLayout, KvProgress
from pagemesh.core.load import EngineLoad
from pagemesh.engine import runner
from pagemesh.engine.loop import StepNotifier
from pagemesh.engine.runner import watched_layers
from pagemesh.scheduler.batch import Batch, ExportedChunk

# 2 KiB of KV for a token in each layer.
MEDIUM = KvLayout.uniform(
    block_size=16, num_layers=12, num_kv_heads=4, head_dim=64, dtype="float32"
)
# 4 KiB.
WIDE = KvLayout.uniform(
    block_size=16, num_layers=80, num_kv_heads=8, head_dim=128, dtype="bfloat16"
)
FLAT = KvLayout.uniform(block_size=16, num_layers=1, num_kv_heads=64, head_dim=256, dtype="float32")
TWO = KvLayout.uniform(block_size=4, num_layers=2, num_kv_heads=1, head_dim=2, dtype="float32")

OLD, NEW = EngineLoad(num_running=1), EngineLoad(num_running=2)


@pytest.mark.parametrize(
    ("layout", "num_tokens", "expected"),
    [
        pytest.param(MEDIUM, 2048, [*range(1, 12)], id="each layer is enough for two parts"),
        pytest.param(MEDIUM, 512, [*range(1, 12)], id="each layer is enough for one part"),
        pytest.param(MEDIUM, 511, [2, 4, 6, 8, 10], id="two layers make a part"),
        pytest.param(MEDIUM, 100, [6], id="six layers make a part"),
        pytest.param(MEDIUM, 40, [], id="all layers make less than a part"),
        pytest.param(WIDE, 2048, [*range(5, 80, 5)], id="no more than sixteen groups"),
        pytest.param(FLAT, 2048, [], id="the last layer is not told of"),
    ],
)
def test_layers_are_grouped_into_what_is_worth_sending(
    layout: KvLayout, num_tokens: int, expected: list[int]
) -> None:
    assert sorted(watched_layers(layout, num_tokens)) == expected


@pytest.fixture
def every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MIN_GROUP_BYTES", 1)


def make_batch(*chunks: ExportedChunk) -> Batch:
    return Batch((), exports=chunks)


@pytest.mark.usefixtures("every_layer")
def test_all_exports_of_a_batch_are_told_of_together_with_the_last_load() -> None:
    told: list[StepOutput] = []
    delivery = StepNotifier(TWO, OLD)
    delivery.open(told.append)
    watch = delivery.progress(make_batch(ExportedChunk("a", 40, 8), ExportedChunk("b", 5, 5)))
    assert watch is not None
    assert watch.num_layers == {1}
    delivery.tell(NEW, None)
    watch.tell(1)
    progress = (KvProgress("a", 40, 1), KvProgress("b", 5, 1))
    assert told == [StepOutput(progress=progress, load=NEW)]
    assert delivery.load == NEW


def test_a_batch_without_exports_or_with_small_ones_is_not_watched() -> None:
    delivery = StepNotifier(TWO, OLD)
    assert delivery.progress(make_batch()) is None
    assert delivery.progress(make_batch(ExportedChunk("a", 40, 8))) is None


@pytest.mark.usefixtures("every_layer")
def test_what_is_told_too_late_reaches_nobody() -> None:
    told: list[StepOutput] = []
    delivery = StepNotifier(TWO, OLD)
    delivery.open(told.append)
    watch = delivery.progress(make_batch(ExportedChunk("a", 40, 8)))
    assert watch is not None
    delivery.close()
    watch.tell(1)
    assert told == []


@pytest.mark.usefixtures("every_layer")
def test_calls_of_two_threads_do_not_overlap() -> None:
    told: list[StepOutput] = []
    second_is_there = threading.Event()
    overlapped: list[bool] = []

    def listener(output: StepOutput) -> None:
        if told:
            second_is_there.set()
        told.append(output)
        if len(told) == 1:
            other.start()
            overlapped.append(second_is_there.wait(0.2))

    delivery = StepNotifier(TWO, OLD)
    delivery.open(listener)
    watch = delivery.progress(make_batch(ExportedChunk("a", 40, 8)))
    assert watch is not None
    other = threading.Thread(target=watch.tell, args=(1,))
    delivery.tell(NEW, StepOutput(load=NEW))
    other.join(10)
    assert overlapped == [False]
    # The load of the later call is not the one from before the first.
    assert [output.load for output in told] == [NEW, NEW]
