"""Lines over a request rate, which differ by markers and dashes too, so that they can be read without colours.

matplotlib is an extra, and takes a second to import: it is imported only when something is drawn.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Final, NamedTuple

from pagemesh.errors import ConfigError

GREYS: Final = ("0.0", "0.25", "0.4", "0.5", "0.1", "0.6")

_MARKS: Final = (
    ("o", "-"),
    ("s", "--"),
    ("^", "-."),
    ("D", ":"),
    ("v", (0, (5, 1))),
    ("x", (0, (1, 1))),
)


class Line(NamedTuple):
    """One series."""

    label: str
    points: Sequence[tuple[float, float]]
    """Request rate and value, NaN where there is none."""


def require_plots(folder: str) -> None:
    """Make the folder; ConfigError unless plots can be drawn there: asked before there is anything to draw."""
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


def draw_lines(
    axes: Any,
    lines: Sequence[Line],
    label: str,
    *,
    is_logarithmic: bool = False,
    colours: Sequence[str] = GREYS,
    grid: str = "0.85",
) -> None:
    """Draw all of them, each from the least rate to the highest one."""
    for line, (marker, dashes), colour in zip(lines, cycle(_MARKS), cycle(colours), strict=False):
        rates, values = zip(*sorted(line.points), strict=True)
        axes.plot(rates, values, marker=marker, linestyle=dashes, color=colour, label=line.label)
    axes.set_xlabel("request rate (requests/s)")
    axes.set_ylabel(label)
    if is_logarithmic:
        axes.set_yscale("log")
        # 30 instead of 3 x 10^1.
        for axis_ticks in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            axis_ticks("{x:g}")
    else:
        # Marks at the top are not to be cut off.
        axes.set_ylim(0, 1.08 * axes.dataLim.y1 or 1)
    axes.grid(color=grid)
    axes.legend()
