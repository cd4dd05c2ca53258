"""How a metric is declared: what it is, who exports it, and how many series there can be of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import product


class Process(enum.Enum):
    """Who exports a metric."""

    GATEWAY = "gateway"
    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"
    KVSTORE = "kvstore"


class Unit(enum.Enum):
    """What a metric counts."""

    SECONDS = "seconds"
    TIMESTAMP = "seconds since 1970"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes per second"
    TOKENS = "tokens"
    BLOCKS = "blocks"
    REQUESTS = "requests"
    WORKERS = "workers"
    SHARE = "share, 0 to 1"
    FLAG = "1 or 0"
    COUNT = "events"


@dataclass(frozen=True, slots=True)
class Label:
    """A label, and what bounds the number of its values: they are named, or their source is."""

    name: str
    values: tuple[str, ...] = ()
    """All that there can be; empty where only `source` is known."""
    source: str = ""
    """Where the values come from and why they are few."""

    def __post_init__(self) -> None:
        assert bool(self.values) != bool(self.source), f"{self.name} needs values or a source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What all kinds of metrics have."""

    name: str
    help: str
    unit: Unit
    processes: tuple[Process, ...]
    look_at: str
    """What to look at when it is high, or grows faster than usual; "nothing: " and why, when that is no trouble."""
    labels: tuple[Label, ...] = ()
    only_with: str = ""
    """The setting without which nobody exports it; empty where there is none."""

    @property
    def series(self) -> str:
        """The name as queries have it; of a histogram, without the endings of its series."""
        return self.name

    @property
    def label_names(self) -> tuple[str, ...]:
        """In their order."""
        return tuple(label.name for label in self.labels)

    @property
    def advice(self) -> str:
        """Sentences for people about what to look at."""
        nothing, rest = self.look_at.split(": ", 1) if ": " in self.look_at else ("", "")
        if nothing == "nothing":
            return f"{rest[0].upper()}{rest[1:]}."
        return f"When it is high: {self.look_at}."

    def label(self, name: str) -> Label:
        """One of its labels; KeyError when it has none of this name."""
        for label in self.labels:
            if label.name == name:
                return label
        raise KeyError(f"{self.name} has no label {name!r}")

    def known_values(self) -> list[tuple[str, ...]]:
        """All combinations of its labels' values; none when one of them is not known beforehand."""
        if not all(label.values for label in self.labels):
            return []
        return list(product(*(label.values for label in self.labels)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSpec(Spec):
    """Declares a counter; exported with `_total`, which is not part of the name here."""

    @property
    def series(self) -> str:
        """The name as queries have it."""
        return f"{self.name}_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeSpec(Spec):
    """Declares a gauge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramSpec(Spec):
    """Declares a histogram; buckets in its unit."""

    buckets: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSpec(Spec):
    """Declares a metric that somebody else's code makes: Envoy, or the client library."""

    kind: str
    """counter, gauge or histogram."""
    origin: str
    """Whose code that is."""


def kind_of(spec: Spec) -> str:
    """As Prometheus calls it."""
    match spec:
        case CounterSpec():
            return "counter"
        case GaugeSpec():
            return "gauge"
        case HistogramSpec():
            return "histogram"
        case ForeignSpec(kind=kind):
            return kind
    raise AssertionError(f"{spec.name} is of no known kind")
