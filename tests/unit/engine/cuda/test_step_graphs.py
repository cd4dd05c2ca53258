"""When decodes are captured, and what becomes of models whose decodes cannot be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from pagemesh.config import ModelConfig
from pagemesh.engine.cuda.step_graphs import TrialSpace, trial_inputs
from pagemesh.errors import ConfigError
from pagemesh.kernels.paged_attention import Capacity
from pagemesh.models.interface import CausalModel, ForwardContext
from pagemesh.models.loader import LoadedModel, load_model
from tests.support.host_accelerator import HostAccelerator, HostGraph
from tests.unit.engine.cuda.device_runners import Made, make_device_runner
from tests.unit.models.model_folder import write_model

SIZES = [8, 4, 2, 1]


@dataclass
class CapturingAccelerator(HostAccelerator):
    """Runs what it captures, as torch does, though the device does nothing of it."""

    captures: bool = False
    error: Exception | None = None

    def capture(self, work: Callable[[], None]) -> HostGraph:
        if self.error is not None:
            raise self.error
        self.captures = True
        work()
        self.captures = False
        return super().capture(work)


@dataclass
class Wrapped:
    """A decoder with something in front of each pass."""

    decoder: CausalModel
    accelerator: CapturingAccelerator
    waits: bool = False
    remembers: bool = False
    """The tokens of a capture, as a model whose host looks at them."""
    remembered: torch.Tensor | None = None

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: ForwardContext,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        if self.waits:
            self.accelerator.synchronize()
        if self.remembers and self.accelerator.captures:
            self.remembered = token_ids.clone()
        if self.remembered is not None and len(self.remembered) == len(token_ids):
            token_ids = self.remembered
        return self.decoder.forward(token_ids, positions, attention, rows)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.decoder.logits(hidden)


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    return load_model(ModelConfig(str(write_model(tmp_path))))


def make(model: LoadedModel, *, waits: bool = False, remembers: bool = False) -> Made:
    accelerator = CapturingAccelerator()
    decoder = Wrapped(model.decoder, accelerator, waits, remembers)
    return make_device_runner(replace(model, decoder=decoder), accelerator=accelerator)


def test_every_size_is_captured_and_nothing_of_the_trials_is_left(model: LoadedModel) -> None:
    made = make(model)
    with capture_logs() as logs:
        made.runner.capture()
    assert [(entry["event"], entry["num_graphs"], entry["largest"]) for entry in logs] == [
        ("steps captured", 2, 24),
        ("decodes captured", 4, 8),
    ]
    assert made.accelerator.num_captured == 6
    assert not made.kv.bytes.any()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("waits", "called a synchronizing operation"),
        ("remembers", "a graph gives other results than its kernels"),
    ],
)
def test_what_no_graph_can_do_runs_eagerly(model: LoadedModel, fault: str, reason: str) -> None:
    made = make(model, **{fault: True})
    with capture_logs() as logs:
        made.runner.capture()
    assert [(entry["event"], entry["log_level"], entry["reason"]) for entry in logs] == [
        (f"{kind} run without CUDA graphs: they cannot be captured", "warning", reason)
        for kind in ("steps", "decodes")
    ]
    # One that waits is never captured at all.
    assert made.accelerator.num_captured == (0 if fault == "waits" else 2)
    assert not made.kv.bytes.any()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("7 GiB"), "memory does not suffice for the graphs.*7 GiB"),
        (RuntimeError("operation not permitted"), "steps of 24 tokens cannot be captured"),
    ],
)
def test_a_capture_that_fails_says_what_to_do(
    model: LoadedModel, error: Exception, words: str
) -> None:
    accelerator = CapturingAccelerator(error=error)
    made = make_device_runner(model, accelerator=accelerator)
    with pytest.raises(ConfigError, match=f"{words}") as caught:
        made.runner.capture()
    assert "--enforce-eager" in caught.value.message


def space_of(num_blocks: int) -> TrialSpace:
    return TrialSpace(num_blocks, block_size=2, max_model_len=4, vocab_size=2, clear=lambda _: None)


def test_trials_of_decodes_use_each_block_once_at_different_places() -> None:
    inputs = trial_inputs(Capacity(8, 100), space_of(3))
    assert inputs.columns.tolist() == [[0, 1, 0], [0, 1, 0], [0, 3, 4]]
    assert inputs.rows.tolist() == [-1, -1, -1]
    assert [tuple(s) for s in inputs.sequences] == [(1, 1, (0,)), (1, 2, (1,)), (1, 1, (2,))]


@pytest.mark.parametrize(
    ("num_blocks", "sequences"),
    [
        (9, [(1, 1, [0]), (1, 2, [1]), (4, 4, [2, 3]), (1, 1, [4])]),
        (4, [(1, 1, [0]), (1, 2, [1]), (4, 4, [2, 3])]),
        (1, [(2, 2, [0])]),
    ],
)
def test_trials_of_other_steps_have_a_chunk_and_some_padding(
    num_blocks: int, sequences: list[tuple[int, int, list[int]]]
) -> None:
    inputs = trial_inputs(Capacity(4, 100, chunk_tokens=8), space_of(num_blocks))
    assert [(n, end, list(blocks)) for n, end, blocks in inputs.sequences] == sequences
    assert inputs.columns.shape == (3, sum(s[0] for s in sequences))
    # All slots are those of the sequences' own blocks, each once.
    assert len(set(inputs.columns[2].tolist())) == inputs.columns.shape[1]
