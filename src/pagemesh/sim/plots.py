"""Plots of simulations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pagemesh.errors import ConfigError
from pagemesh.sim.simulation import Run
from pagemesh.sim.summary import Summary
from pagemesh.workload.drawing import Line, draw_lines


def _ms(seconds: float | None) -> float:
    return math.nan if seconds is None else 1000 * seconds


class _Plot(NamedTuple):
    file: str
    label: str
    value: Callable[[Summary], float]
    """NaN where there is none."""
    is_logarithmic: bool = False


_OVER_RATE: Final = (
    _Plot("hit_rate.png", "prompt tokens not computed (%)", lambda s: 100 * s.delivered_hit_rate),
    _Plot("ttft_p50.png", "time to first token, median (ms)", lambda s: _ms(s.ttft_p50), True),
    _Plot("ttft_p99.png", "time to first token, 99 % (ms)", lambda s: _ms(s.ttft_p99), True),
    _Plot("goodput.png", "good requests (requests/s)", lambda s: s.goodput),
)


def draw_plots(folder: str, results: Sequence[tuple[Summary, Run]]) -> None:
    """PNG files: figures over the request rate for each policy, and the load of workers over time.

    ConfigError when one cannot be written.
    """
    try:
        _draw_all(Path(folder), results)
    except OSError as error:
        raise ConfigError(f"--plots is {folder!r}: {error.filename}: {error.strerror}") from error


def _draw_all(target: Path, results: Sequence[tuple[Summary, Run]]) -> None:
    # Imported here: it takes a second, and is an extra.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    for plot in _OVER_RATE:
        figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
        _draw_over_rate(axes, plot, [summary for summary, _ in results])
        figure.savefig(target / plot.file, dpi=150)
        pyplot.close(figure)
    for summary, run in results:
        figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
        image = _draw_loads(axes, summary, run)
        figure.colorbar(image, ax=axes, label="requests that run or wait")
        figure.savefig(target / f"load_{summary.policy}_{summary.request_rate:.2f}.png", dpi=150)
        pyplot.close(figure)


def _draw_over_rate(axes: Any, plot: _Plot, summaries: Sequence[Summary]) -> None:
    lines = [
        Line(policy, [(s.request_rate, plot.value(s)) for s in summaries if s.policy == policy])
        for policy in dict.fromkeys(summary.policy for summary in summaries)
    ]
    draw_lines(axes, lines, plot.label, is_logarithmic=plot.is_logarithmic)


def _draw_loads(axes: Any, summary: Summary, run: Run) -> Any:
    by_worker = list(zip(*run.loads, strict=True))
    end = run.load_times[-1] or 1.0
    image = axes.imshow(
        by_worker,
        aspect="auto",
        interpolation="nearest",
        cmap="Greys",
        vmin=0,
        extent=(0, end, len(by_worker) - 0.5, -0.5),
    )
    axes.set_xlabel("time (s)")
    axes.set_ylabel("worker (number)")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_title(f"{summary.policy}, {summary.request_rate:.2f} requests/s")
    return image
