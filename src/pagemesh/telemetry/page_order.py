"""The order in which a page has its metrics: for scripts that look for a name anywhere in a line.

They keep the last line that they find, so no name may come behind one that is a part of it: that of
vllm:num_requests_waiting is the last line with these letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Named = TypeVar("Named")


def in_order(metrics: Iterable[Named], name_of: Callable[[Named], str]) -> list[Named]:
    """The same metrics, each in front of those whose names are parts of its own; else as they were."""
    ordered: list[tuple[str, Named]] = []
    for metric in metrics:
        name = _bare(name_of(metric))
        # Whatever has this name as a part stands in front of that one already.
        place = next((i for i, (other, _) in enumerate(ordered) if other in name), len(ordered))
        ordered.insert(place, (name, metric))
    return [metric for _, metric in ordered]


def _bare(name: str) -> str:
    """What somebody would look for who does not care for whose metric it is, nor for its kind."""
    return name.rpartition(":")[2].removesuffix("_total")
