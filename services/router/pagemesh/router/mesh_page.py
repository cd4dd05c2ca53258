"""One page of metrics for the whole mesh, made of the pages of its routers and workers. Knows texts alone.

What a router counts stands there once for each router, with the label `router`: a sum would fall when a router is
started again or does not answer, which everybody who computes rates would take for growth. For the same reason what
each worker counts by itself has the label `worker`. The gauges of the mesh, in vLLM's names, stand there once for
each model, whichever router is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pagemesh.telemetry.metrics import admission, engine, requests
from pagemesh.telemetry.metrics.registry import in_order
from pagemesh.telemetry.older_names import HIT_RATES, RATES, share

OF_WORKERS: Final = (engine.NUM_PREEMPTIONS.series, engine.ITERATION_TOKENS.series)
"""Metrics that the page has from the workers: a router lacks them, or counts them from when it knows a worker."""

_WAITING: Final = frozenset({engine.NUM_REQUESTS_WAITING.name, engine.NUM_WAITING_BY_REASON.name})
_SUMS: Final = frozenset(spec.name for spec in RATES)
_HIT_RATES: Final = frozenset(spec.name for spec in HIT_RATES)
_MODEL: Final = re.compile(r'model_name="(?:[^"\\]|\\.)*"')


@dataclass(slots=True)
class _Family:
    """One metric: its lines as a page has them."""

    header: list[str] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)

    @property
    def is_gauge(self) -> bool:
        return self.header[-1].endswith(" gauge")

    def values(self) -> Iterator[tuple[str, float]]:
        """What stands in front of each number, and the number."""
        for line in self.samples:
            series, _, number = line.rpartition(" ")
            yield series, float(number)

    def by_labels(self) -> dict[str, float]:
        """The numbers by the labels' text."""
        return {series.partition("{")[2]: number for series, number in self.values()}


_Page = Mapping[str, _Family]
_NOTHING: Final = _Family()


def mesh_page(
    own_address: str, own: bytes, routers: Mapping[str, bytes], workers: Mapping[str, bytes]
) -> bytes:
    """The page of a router that is asked, with those of other routers by address and of workers by name."""
    pages = {address: _read(page) for address, page in routers.items()}
    pages[own_address] = mine = _read(own)
    merged: dict[str, _Family] = {}
    for address, page in sorted(pages.items(), key=lambda item: item[0] != own_address):
        for name, family in page.items():
            if name in OF_WORKERS:
                continue
            if family.is_gauge and name.startswith("vllm:"):
                if page is mine:
                    lines = list(_of_mesh(name, mine, pages))
                    merged[name] = _Family(family.header, lines)
            else:
                _add(merged, name, family, "router", address)
    for worker_id, text in sorted(workers.items()):
        for name, family in _read(text).items():
            _add(merged, name, family, "worker", worker_id)
    ordered = in_order(merged.items(), lambda item: item[0])
    lines = [line for _, family in ordered for line in (*family.header, *family.samples)]
    return "".join(f"{line}\n" for line in lines).encode()


def _read(page: bytes) -> dict[str, _Family]:
    families: dict[str, _Family] = {}
    family = _NOTHING
    for line in page.decode().splitlines():
        if line.startswith("# HELP "):
            family = families.setdefault(line.split(" ", 3)[2], _Family())
        if line.startswith("#"):
            family.header.append(line)
        elif line:
            family.samples.append(line)
    return families


def _add(merged: dict[str, _Family], name: str, family: _Family, label: str, value: str) -> None:
    """Put a process's series beside those of others."""
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    pair = f'{label}="{escaped}"'
    target = merged.setdefault(name, _Family(family.header))
    target.samples += (_labelled(line, pair) for line in family.samples)


def _labelled(line: str, pair: str) -> str:
    name, has_labels, rest = line.partition("{")
    if has_labels:
        return f"{name}{{{pair},{rest}"
    name, _, number = line.partition(" ")
    return f"{name}{{{pair}}} {number}"


def _of_mesh(name: str, own: _Page, pages: Mapping[str, _Page]) -> Iterator[str]:
    """A gauge of the mesh: what the router that is asked says, but for what each router has of its own."""
    routers = list(pages.values())
    if name in _WAITING:
        others = (page for page in routers if page is not own)
        numbers = _with_queues(own[name], others)
    elif name in _SUMS:
        totals = _sum(name, routers)
        numbers = ((series, totals[_labels(series)]) for series, _ in own[name].values())
    elif name in _HIT_RATES:
        hits = _sum(requests.PREFIX_CACHE_HITS.series, routers)
        queries = _sum(requests.PREFIX_CACHE_QUERIES.series, routers)
        numbers = (
            (series, share(hits.get(_labels(series), 0.0), queries.get(_labels(series), 0.0)))
            for series, _ in own[name].values()
        )
    else:
        yield from own[name].samples
        return
    for series, number in numbers:
        yield f"{series} {number!r}"


def _with_queues(waiting: _Family, others: Iterable[_Page]) -> Iterator[tuple[str, float]]:
    """With those in the queues of the other routers: each says what waits on workers, and in its own queue."""
    queued = _sum(admission.REQUESTS_QUEUED.name, others)
    for series, number in waiting.values():
        model = _MODEL.search(series)
        if model is not None and 'reason="deferred"' not in series:
            number += queued.get(f"{model[0]}}}", 0.0)
        yield series, number


def _sum(name: str, pages: Iterable[_Page]) -> dict[str, float]:
    """Of a metric over routers, by the text of its labels."""
    totals: dict[str, float] = {}
    for page in pages:
        for labels, number in page.get(name, _NOTHING).by_labels().items():
            totals[labels] = totals.get(labels, 0.0) + number
    return totals


def _labels(series: str) -> str:
    return series.partition("{")[2]
