"""What a mesh told of a run, as entries: a path, and a plain value without addresses, ids or names of equal workers."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from scripts.run_dump.left_out import Entry, left_out
from tests.support.trace_receiver import ReceivedSpan

Counts = Mapping[str, float]
"""Counters, and the number and sum of what histograms counted, by part, name and labels."""

_PLAIN: Final = (
    (r"\b(decode|prefill)-\d+\b", r"\1"),
    (r"\b127\.0\.0\.1:\d+", "<address>"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<id>"),
    (r"\b[0-9a-f]{32}\b", "<id>"),
    (r"after +\d+\.\d s", "after <time>"),
)
"""Which of two equal workers it was, is up to chance."""
_DIGITS: Final = 4
"""Of a number with a fraction."""


def plain(text: str) -> str:
    """A text without what is another one each time."""
    for pattern, replacement in _PLAIN:
        text = re.sub(pattern, replacement, text)
    return text


def flat(path: str, value: Any) -> Iterator[Entry]:
    """All that a value contains; JSON in a string as well."""
    if isinstance(value, str) and value.startswith(("{", "[{")):
        try:
            value = json.loads(value)
        except ValueError:
            yield path, plain(value)
            return
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from flat(f"{path}/{plain(str(name))}", each)
    elif isinstance(value, list | tuple):
        yield f"{path}/length", len(value)
        for index, each in enumerate(value):
            yield from flat(f"{path}/{index}", each)
    elif isinstance(value, str):
        yield path, plain(value)
    else:
        yield path, round(value, _DIGITS) if isinstance(value, float) else value


def trace_entries(name: str, spans: Sequence[ReceivedSpan]) -> Iterator[Entry]:
    """The trees of a request's spans. There are several where a process died before it sent a span."""
    there = {span.span_id for span in spans}
    below = defaultdict(list)
    for span in spans:
        below[span.parent_id if span.parent_id in there else ""].append(span)
    path = f"trace/{name}"
    yield from ((f"{path}{inner}", value) for inner, value in _siblings(path, below[""], below))


def _siblings(
    path: str, spans: Iterable[ReceivedSpan], below: Mapping[str, list[ReceivedSpan]]
) -> Iterator[Entry]:
    """Entries below the path. Those of the same name may begin in any order, so they are sorted by what they tell."""
    trees = []
    for span in spans:
        tree = list(_span(f"{path}/{span.name}", span, below))
        told = left_out((f"{path}/{span.name}{inner}", value) for inner, value in tree)
        trees.append((span.name, repr(told), tree))
    numbers = Counter[str]()
    for name, _, tree in sorted(trees, key=itemgetter(0, 1)):
        numbers[name] += 1
        own = name if numbers[name] == 1 else f"{name} ({numbers[name]})"
        yield from ((f"/{own}{inner}", value) for inner, value in tree)


def _span(
    path: str, span: ReceivedSpan, below: Mapping[str, list[ReceivedSpan]]
) -> Iterator[Entry]:
    yield "/kind", Span.SpanKind.Name(span.span.kind)
    yield "/status", Status.StatusCode.Name(span.span.status.code)
    yield "/message", plain(span.span.status.message)
    yield from flat("/resource", span.resource)
    yield from flat("/attributes", span.attributes)
    for index, (name, attributes) in enumerate(span.events):
        yield f"/events/{index}", name
        yield from flat(f"/events/{index}", attributes)
    yield from _siblings(path, below.get(span.span_id, ()), below)


def counts(pages: Mapping[str, str]) -> Counts:
    """What pages count, workers of a role together. Of histograms of times, how many were measured."""
    found = defaultdict[str, float](float)
    for part, page in pages.items():
        for family in text_string_to_metric_families(page):
            if family.type in ("counter", "histogram"):
                for sample in family.samples:
                    if _is_count(sample.name):
                        found[_series(part, sample.name, sample.labels)] += sample.value
    return dict(found)


def _is_count(name: str) -> bool:
    if name.endswith(("_created", "_bucket")):
        return False
    return "_seconds" not in name or name.endswith(("_seconds_count", "_seconds_total"))


def count_entries(name: str, before: Counts, after: Counts) -> Iterator[Entry]:
    """What a request added."""
    for series, value in after.items():
        if added := value - before.get(series, 0.0):
            yield f"metrics/counts/{name}/{series}", round(added, _DIGITS)


def family_entries(pages: Mapping[str, str]) -> Iterator[Entry]:
    """Names, types, help and labels of all metrics."""
    for part, page in pages.items():
        for family in text_string_to_metric_families(page):
            path = f"metrics/families/{plain(part)}/{family.name}"
            yield f"{path}/type", family.type
            yield f"{path}/help", family.documentation
            yield from _label_entries(path, family)


def _label_entries(path: str, family: Metric) -> Iterator[Entry]:
    for sample in family.samples:
        for label, value in sample.labels.items():
            yield f"{path}/labels/{label}/{plain(value)}", True


def gauge_entries(pages: Mapping[str, str]) -> Iterator[Entry]:
    """What is shown beside counts, of the workers of a role together."""
    gauges = defaultdict[str, float](float)
    for part, page in pages.items():
        for family in text_string_to_metric_families(page):
            for sample in family.samples if family.type == "gauge" else ():
                gauges[_series(part, sample.name, sample.labels)] += sample.value
    for series, value in gauges.items():
        yield f"metrics/gauges/{series}", round(value, _DIGITS)


def _series(part: str, name: str, labels: Mapping[str, str]) -> str:
    told = ",".join(f"{label}={plain(value)}" for label, value in sorted(labels.items()))
    return f"{plain(part)}/{name}{{{told}}}"


def log_entries(
    logs: Mapping[str, Iterable[dict[str, Any]]], names: Iterable[str]
) -> Iterator[Entry]:
    """Lines of the named requests, and those that are about none: how many, and what their fields said."""
    names = tuple(names)
    numbers = Counter[str]()
    fields = defaultdict[str, list[str]](list)
    for log, lines in logs.items():
        for line in lines:
            request = _request(line, names)
            if request is None:
                continue
            said = dict(line)
            event = f"{said.pop('level', '')} {plain(str(said.pop('event', 'answered')))}"
            path = f"logs/{plain(log)}/{request}/{event.strip()}"
            numbers[path] += 1
            for field, value in said.items():
                for place, each in flat(f"{path}/{field}", value):
                    fields[place].append(str(each))
    yield from numbers.items()
    for path, values in fields.items():
        yield path, " | ".join(sorted(values))


def _request(line: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """Whose line it is; none of another request than those that are named."""
    if "request_id" not in line:
        return "no request"
    return next((name for name in names if str(line["request_id"]).startswith(name)), None)
