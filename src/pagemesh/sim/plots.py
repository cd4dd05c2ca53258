"""Plots, which differ by markers, dashes and brightness, so that they can be read without colours."""

from __future__ import annotations

import importlib
import math
import tempfile
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Final, NamedTuple

from pagemesh.errors import ConfigError
from pagemesh.sim.simulation import Run
from pagemesh.sim.summary import Summary

_STYLES: Final = (
    ("o", "-", "0.0"),
    ("s", "--", "0.25"),
    ("^", "-.", "0.4"),
    ("D", ":", "0.5"),
    ("v", (0, (5, 1)), "0.1"),
    ("x", (0, (1, 1)), "0.6"),
)


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


def require_plots(folder: str) -> None:
    """Make the folder; ConfigError unless plots can be drawn there: asked before anything is simulated."""
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        raise ConfigError(
            f"--plots is {folder!r}, but there is no matplotlib: pip install 'pagemesh[plots]'"
        ) from None
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(f"--plots is {folder!r}: {error.strerror}") from error


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
    styles = cycle(_STYLES)
    for policy in dict.fromkeys(summary.policy for summary in summaries):
        marker, dashes, grey = next(styles)
        points = sorted((s.request_rate, plot.value(s)) for s in summaries if s.policy == policy)
        rates, values = zip(*points, strict=True)
        axes.plot(rates, values, marker=marker, linestyle=dashes, color=grey, label=policy)
    axes.set_xlabel("request rate (requests/s)")
    axes.set_ylabel(plot.label)
    if plot.is_logarithmic:
        axes.set_yscale("log")
        # 30 instead of 3 x 10^1.
        for axis_ticks in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            axis_ticks("{x:g}")
    else:
        # Marks at the top are not to be cut off.
        axes.set_ylim(0, 1.08 * axes.dataLim.y1 or 1)
    axes.grid(color="0.85")
    axes.legend()


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
