"""Choosing tokens with top-p: the kernel that draws, alone, for logits of several shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from gpu.clock import forgetting
from gpu.compiling import compile_ahead
from gpu.probe import Probe
from pagemesh.kernels.launch import Launch, noting
from pagemesh.kernels.sampling import SamplingPlan, make_token_chooser

VOCAB_SIZE = 128_256
TOP_P = 0.95
PEAKS = 32
"""Tokens that stand out, where some do."""

NUM_CALLS = 4
"""Of a graph."""


class Kind(NamedTuple):
    """How logits lie."""

    name: str
    deviation: float
    height: float  # of the tokens that stand out; 0 for none
    temperature: float = 1.0


KINDS = (
    Kind("best 24 above", 1.0, 24.0),
    Kind("best 16 above", 1.0, 16.0),
    Kind("best 24 above, temperature 1.5", 1.0, 24.0, 1.5),
    Kind("a hundredth 6 above", 2.5, -6.0),
    Kind("random weights", 1.28, 0.0),
)


def run(probe: Probe) -> None:
    """Each kind of logits with 1 and 64 rows."""
    probe.row("rows, logits", "list", "draw us", "all us", "greedy us", "torch us")
    for rows in (1, 2) if probe.toy else (1, 64):
        for kind in KINDS[:2] if probe.toy else KINDS:
            if not probe.has_time():
                return
            with forgetting(), probe.case(f"{rows}, {kind.name}"):
                _measure(probe, rows, kind)


def _measure(probe: Probe, rows: int, kind: Kind) -> None:
    vocab_size = 4096 if probe.toy else VOCAB_SIZE
    name = f"{rows}, {kind.name}"
    logits = _logits(rows, vocab_size, kind, probe.device)
    sampled = Choice(logits, kind.temperature, TOP_P)
    greedy = Choice(logits, 0.0, 1.0)
    probe.note(compile_ahead([sampled, greedy]))
    sampled()
    num_candidates, draw = sampled.draw_alone()
    listed = [float(each) for each in num_candidates.tolist()]
    probe.figure(f"{name}: tokens in the list", "", listed)
    draw_us = _time(probe, f"{name}: draw kernel", draw)
    all_us = _time(probe, f"{name}: all kernels", sampled)
    greedy_us = _time(probe, f"{name}: greedy", greedy)
    cells = [
        f"{sum(listed) / len(listed):.0f}",
        f"{draw_us:.1f}",
        f"{all_us:.1f}",
        f"{greedy_us:.1f}",
    ]
    with probe.case(f"{name}: torch"):
        work = partial(choose_by_torch, logits, kind.temperature)
        for _ in range(3):
            work()
        probe.clock.settle()
        samples = [probe.clock.queued_ms(work, 0.004) * 1e3 for _ in range(probe.num_rounds)]
        cells.append(f"{probe.figure(f'{name}: torch, by sorting', 'us', samples):.1f}")
    probe.row(name, *cells)


def _time(probe: Probe, name: str, work: Callable[[], object]) -> float:
    num_calls = 1 if probe.toy else NUM_CALLS

    def several() -> None:
        for _ in range(num_calls):
            work()

    graph = probe.clock.capture(several)
    samples = probe.clock.replays_ms(graph, probe.num_rounds, 0.15)
    return probe.figure(name, "us", [1e3 * each / num_calls for each in samples])


def _logits(rows: int, vocab_size: int, kind: Kind, device: torch.device) -> torch.Tensor:
    logits = torch.randn(rows, vocab_size, device=device) * kind.deviation
    if kind.height < 0:
        logits[:, : vocab_size // 100] -= kind.height
    elif kind.height > 0:
        # Scattered, and a little different from each other.
        step = vocab_size // PEAKS
        logits[:, ::step] = kind.height + 0.1 * torch.rand_like(logits[:, ::step])
    return logits.bfloat16()


class Choice:
    """Chooses a token for each row, all in the same way."""

    def __init__(self, logits: torch.Tensor, temperature: float, top_p: float) -> None:
        num_rows, vocab_size = logits.shape
        self._logits = logits
        self._choose = make_token_chooser(vocab_size, logits.device)
        self._plan = make_plan(logits, temperature, top_p)
        self._token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
        self._flags = torch.empty(num_rows, dtype=torch.int32, device=logits.device)

    def __call__(self) -> object:
        """Start all kernels."""
        self._choose(self._logits, self._plan, self._token_ids, self._flags)
        return self._token_ids

    def draw_alone(self) -> tuple[torch.Tensor, Callable[[], object]]:
        """How many candidates each row has, and the last kernel, over what the others left."""
        with noting() as launches:
            self()
        draw: Launch = launches[-1]
        if "draw" not in draw.kernel.__name__:
            raise RuntimeError(f"the last kernel is {draw.kernel.__name__}, none that draws")
        counts = draw.arguments["num_candidates"]
        assert isinstance(counts, torch.Tensor)
        return counts, lambda: draw.kernel[draw.grid](**draw.arguments, **draw.options)


def make_plan(logits: torch.Tensor, temperature: float, top_p: float) -> SamplingPlan:
    """All rows alike; none is edited."""
    num_rows, vocab_size = logits.shape
    full = partial(torch.full, (num_rows,), device=logits.device)
    empty = partial(torch.empty, device=logits.device)
    num_drawn = num_rows if temperature > 0.0 else 0
    return SamplingPlan(
        temperatures=full(fill_value=temperature, dtype=torch.float64),
        top_ps=full(fill_value=top_p, dtype=torch.float64),
        min_ps=full(fill_value=0.0, dtype=torch.float64),
        seeds=torch.arange(num_rows, device=logits.device),
        positions=torch.arange(num_rows, device=logits.device),
        top_ks=full(fill_value=0, dtype=torch.int32),
        drawn_rows=torch.arange(num_drawn, dtype=torch.int32, device=logits.device),
        edit_slots=full(fill_value=-1, dtype=torch.int32),
        penalties=empty(0, 3),
        entry_bounds=empty(0, 5, dtype=torch.int32),
        entry_ids=empty(0, dtype=torch.int32),
        entry_values=empty(0),
        mask_rows=empty(0, dtype=torch.int32),
        masks=empty(0, -(-vocab_size // 32), dtype=torch.int32),
    )


def choose_by_torch(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """What engines write without kernels of their own: sort, cumulate, mask, draw."""
    ordered, ids = (logits.float() / temperature).sort(-1, descending=True)
    probabilities = ordered.softmax(-1)
    probabilities[probabilities.cumsum(-1) - probabilities >= TOP_P] = 0.0
    noise = torch.empty_like(probabilities).exponential_()
    return ids.gather(1, (probabilities / noise).argmax(-1, keepdim=True))
