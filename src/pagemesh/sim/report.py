"""Summaries for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pagemesh.sim.summary import Summary

_COLUMNS = (
    ("policy", 13),
    ("rate/s", 7),
    ("avail.", 7),
    ("capt.", 7),
    ("deliv.", 7),
    ("TTFT p50", 9),
    ("p90", 8),
    ("p99", 8),
    ("ITL p50", 8),
    ("p99", 7),
    ("done/s", 7),
    ("good/s", 7),
    ("good", 6),
    ("imbal.", 7),
    ("missed", 7),
)


def as_table(summaries: Sequence[Summary]) -> str:
    """A line for each, with times in milliseconds and shares in percent."""
    head = "".join(
        name.ljust(width) if name == "policy" else name.rjust(width) for name, width in _COLUMNS
    )
    lines = [head]
    for summary in summaries:
        cells = _cells(summary)
        lines.append(
            cells[0].ljust(_COLUMNS[0][1])
            + "".join(
                cell.rjust(width) for cell, (_, width) in zip(cells[1:], _COLUMNS[1:], strict=True)
            )
        )
    shared = sorted({f"{summary.shared_hit_rate:.1%}" for summary in summaries})
    return "\n".join(
        [
            *lines,
            "",
            "Hit rates: share of prompt tokens that were available somewhere, captured on the chosen"
            " workers, delivered.",
            f"An endless cache shared by all workers would have had {' to '.join(shared)}.",
            "TTFT and ITL in ms; good: completed within all limits; imbal.: busiest decode worker over"
            " the mean;",
            "missed: refused, late, lost or given up.",
        ]
    )


def as_json(summaries: Sequence[Summary], settings: dict[str, Any]) -> str:
    """All figures, in seconds and shares, and what they are of."""
    content = {"settings": settings, "runs": [asdict(summary) for summary in summaries]}
    return json.dumps(content, indent=2) + "\n"


def _cells(summary: Summary) -> list[str]:
    num_missed = summary.num_requests - summary.outcomes.get("completed", 0)
    return [
        summary.policy,
        f"{summary.request_rate:.2f}",
        *(
            f"{share:.1%}"
            for share in (
                summary.available_hit_rate,
                summary.captured_hit_rate,
                summary.delivered_hit_rate,
            )
        ),
        *(_ms(t, 0) for t in (summary.ttft_p50, summary.ttft_p90, summary.ttft_p99)),
        *(_ms(t, 1) for t in (summary.itl_p50, summary.itl_p99)),
        f"{summary.throughput:.2f}",
        f"{summary.goodput:.2f}",
        f"{summary.good_share:.0%}",
        f"{summary.imbalance:.2f}",
        str(num_missed),
    ]


def _ms(seconds: float | None, num_digits: int) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.{num_digits}f}"
