"""One run of the probe: its time, its figures and notes, and the table that it prints at the end."""

from __future__ import annotations

import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from report import Report

from gpu.clock import Clock


class Probe:
    """What every subcommand works with."""

    def __init__(
        self, clock: Clock, report: Report, path: Path, seconds: float, *, quick: bool, toy: bool
    ) -> None:
        """`toy`: sizes that the interpreter can do."""
        self.clock = clock
        self.quick = quick
        self.toy = toy
        self._report = report
        self._path = path
        self._ends_at = time.monotonic() + seconds
        self._notes: list[str] = []
        self._rows: list[tuple[str, ...]] = []
        self._is_spent = False
        report.settings["notes"] = self._notes

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.clock.device

    @property
    def path(self) -> Path:
        """Of the figures."""
        return self._path

    @property
    def num_rounds(self) -> int:
        """Samples of a figure, if they fit its time."""
        return 5 if self.quick else 15

    def has_time(self, seconds: float = 0.0) -> bool:
        """Whether so much of the time is left; says once when it is not."""
        has = time.monotonic() + seconds < self._ends_at
        if not has and not self._is_spent:
            self._is_spent = True
            self.note("the time is spent: what follows is left out")
        return has

    def figure(self, name: str, unit: str, samples: Sequence[float]) -> float:
        """Add a figure, print it and write all of them; gives its median."""
        figure = self._report.add(name, unit, samples)
        print(f"  {name}: {figure.value:.4g} {unit}", flush=True)
        self._write()
        return figure.value

    def setting(self, name: str, value: object) -> None:
        """Write down a circumstance."""
        self._report.settings[name] = value
        print(f"  {name} = {value}", flush=True)

    def note(self, text: str) -> None:
        """Write something down that is no figure."""
        self._notes.append(text)
        print(f"  note: {text}", flush=True)
        self._write()

    def row(self, *cells: object) -> None:
        """A row of the table at the end."""
        self._rows.append(tuple(map(str, cells)))

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """A case that may fail without the others; ends the run when the device does not answer."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            lines = str(error).strip().splitlines()
            self.note(f"{name} failed: {type(error).__name__}: {lines[0] if lines else ''}")
            try:
                self.clock.settle()
            except RuntimeError:
                self.note("the device does not answer any more")
                sys.exit(1)

    def finish(self) -> None:
        """Print the table and the notes, and write everything once more."""
        if self._rows:
            widths = [max(map(len, column)) for column in zip(*_filled(self._rows), strict=True)]
            print()
            for row in _filled(self._rows):
                cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
                print("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
        for note in self._notes:
            print(f"note: {note}")
        sys.stdout.flush()
        if self._report.figures:
            self._report.write(self._path)

    def _write(self) -> None:
        try:
            self._report.write(self._path, quietly=True)
        except OSError as error:
            print(f"  {self._path} cannot be written: {error}", file=sys.stderr)


def _filled(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """All rows as long as the longest."""
    length = max(map(len, rows))
    return [row + ("",) * (length - len(row)) for row in rows]


def gpu_state() -> str:
    """Clocks, temperature and power, as the driver's tool says; empty without it."""
    query = "clocks.sm,clocks.mem,temperature.gpu,power.draw"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
