"""Latency over rate: one picture as PNG, and as a page of HTML that needs nothing else and follows the reader's choice
of light or dark.
"""

from __future__ import annotations

import html
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pagemesh.bench.metric_names import METRICS, percentile_name
from pagemesh.bench.metrics import Metrics
from pagemesh.bench.report import RateResult, overview
from pagemesh.errors import ConfigError
from pagemesh.workload.drawing import GREYS, Line, draw_lines

FILE_STEM: Final = "latency_over_rate"
_LATENCIES: Final = ("ttft", "tpot", "e2el")
_SERIES: Final = ("#0a0001", "#0a0002", "#0a0003", "#0a0004", "#0a0005", "#0a0006")
_INK: Final = "#0b0001"
_GRID: Final = "#0b0002"
"""Colours that stand for variables of the page: its style sheet says what they look like."""

_NO_METADATA: Final = dict.fromkeys(("Date", "Creator", "Format", "Type"))
"""Equal figures make equal pages, which name no address but that of SVG's own language."""

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --paper: #fff; --ink: #1b1b1b; --grid: #ddd;
  --s0: #0b5cad; --s1: #b3420b; --s2: #1a7a3c; --s3: #7a3fa8; --s4: #8a6d00; --s5: #555; }}
@media (prefers-color-scheme: dark) {{ :root {{ --paper: #16181c; --ink: #e6e6e6; --grid: #3a3d44;
  --s0: #6cb2ff; --s1: #ff9a62; --s2: #6fd391; --s3: #c79bf0; --s4: #e3c34d; --s5: #aaa; }} }}
body {{ background: var(--paper); color: var(--ink); font: 16px/1.4 system-ui, sans-serif;
  margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }}
svg {{ width: 100%; height: auto; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ border-bottom: 1px solid var(--grid); padding: .25rem .75rem; text-align: right; }}
</style>
</head>
<body>
<h1>{title}</h1>
{picture}
<div class="wide"><table>
{rows}
</table></div>
<p>TTFT, TPOT and E2EL in ms: median and percentile. {note}</p>
</body>
</html>
"""


class _Look(NamedTuple):
    colours: Sequence[str]
    ink: str
    grid: str


def draw_plots(folder: str, model: str, results: Sequence[RateResult]) -> list[Path]:
    """Draw both files and say which; ConfigError when one cannot be written."""
    title = f"Latency of {model} over the request rate"
    picture, page = (Path(folder) / f"{FILE_STEM}.{kind}" for kind in ("png", "html"))
    try:
        picture.write_bytes(_draw(results, _Look(GREYS, "black", "0.85"), "png"))
        page.write_text(_page(title, results), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--plots is {folder!r}: {error.filename}: {error.strerror}") from error
    return [picture, page]


def place_of(result: RateResult) -> float:
    """Where a rate is drawn: an infinite one where as many requests were answered in a second."""
    return result.metrics.request_throughput if result.rate == math.inf else result.rate


def _page(title: str, results: Sequence[RateResult]) -> str:
    svg = _draw(results, _Look(_SERIES, _INK, _GRID), "svg").decode()
    svg = svg[svg.index("<svg") :]
    for number, colour in enumerate(_SERIES):
        svg = svg.replace(colour, f"var(--s{number})")
    svg = svg.replace(_INK, "var(--ink)").replace(_GRID, "var(--grid)")
    head, *rows = overview(results)
    return _PAGE.format(
        title=html.escape(title),
        picture=svg,
        rows="\n".join([_row("th", head), *(_row("td", row) for row in rows)]),
        note="A rate of inf is drawn where its requests per second are."
        if _has_inf(results)
        else "",
    )


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _has_inf(results: Sequence[RateResult]) -> bool:
    return any(result.rate == math.inf for result in results)


def _draw(results: Sequence[RateResult], look: _Look, kind: str) -> bytes:
    # Imported here: it takes a second, and is an extra.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    rules: Any = {
        **dict.fromkeys(inks, look.ink),
        "svg.fonttype": "none",
        "svg.hashsalt": FILE_STEM,
        "legend.framealpha": 0.0,
    }
    with matplotlib.rc_context(rules):
        figure, panels = pyplot.subplots(1, 4, figsize=(16, 4), layout="constrained")
        for axes, name in zip(panels, _LATENCIES, strict=False):
            lines, label = _latency_lines(name, results), f"{METRICS[name].short} (ms)"
            is_positive = all(value > 0 for line in lines for _, value in line.points)
            draw_lines(
                axes, lines, label, is_logarithmic=is_positive, colours=look.colours, grid=look.grid
            )
        draw_lines(
            panels[-1],
            _throughput_lines(results),
            "requests/s",
            colours=look.colours,
            grid=look.grid,
        )
        content = io.BytesIO()
        figure.savefig(
            content,
            format=kind,
            dpi=150,
            transparent=kind == "svg",
            metadata=_NO_METADATA if kind == "svg" else None,
        )
        pyplot.close(figure)
    return content.getvalue()


def _latency_lines(name: str, results: Sequence[RateResult]) -> list[Line]:
    def line(label: str, value: Callable[[Metrics], float]) -> Line:
        return Line(label, [(place_of(result), value(result.metrics)) for result in results])

    def percentile(index: int) -> Callable[[Metrics], float]:
        return lambda metrics: metrics.times[name].percentiles[index][1]

    lines = [line("median", lambda metrics: metrics.times[name].median)]
    for index, (which, _) in enumerate(results[0].metrics.times[name].percentiles):
        if which != 50:
            lines.append(line(f"p{percentile_name(which)}", percentile(index)))
    return lines


def _throughput_lines(results: Sequence[RateResult]) -> list[Line]:
    done = [(place_of(result), result.metrics.request_throughput) for result in results]
    lines = [Line("done", done)]
    good = [
        (place_of(result), goodput)
        for result in results
        if (goodput := result.metrics.request_goodput) is not None
    ]
    return [*lines, Line("good", good)] if good else lines
