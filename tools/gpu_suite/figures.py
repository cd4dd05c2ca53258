"""The table at the end: what was measured, beside the least that the device would need, and the aim.

Floors are of the same run: a benchmark writes the share of its floor, or the floor itself, beside its figure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tools.gpu_suite.record import FILE, read
from tools.gpu_suite.slices import Slice

LEAST_US: Final = 50.0
"""A floor below it says nothing about an aim: the launch of a kernel takes a few microseconds."""

_MICROSECONDS: Final = {"s": 1e6, "ms": 1e3, "us": 1.0}


class Row(NamedTuple):
    """One line of the table."""

    name: str
    unit: str
    command: str  # whose figures have it
    value: str  # as a regular expression, as the next two; the first figure counts
    share: str = ""  # the figure that has the share of the floor
    floor: str = ""  # or the figure that is the floor
    aim: float | None = None  # in the unit
    aim_share: float | None = None  # or of the floor
    is_rate: bool = False  # then more is better, and the floor is what the device can do


def _step(rows: int, kind: str, figure: str, model: str = "8B") -> str:
    return f"{model}, {rows} x 512, {kind}: {figure}"


def _decode(name: str, rows: int, aim_share: float, model: str = "8B") -> Row:
    value, share = (
        _step(rows, "greedy", figure, model) for figure in ("graph", "graph, share of copy")
    )
    return Row(name, "ms", "step", value, share, aim_share=aim_share)


def _product(rows: int, weight: str, aim_share: float) -> Row:
    share = re.escape(f"{rows}, {weight}: share of the limit")
    value = re.escape(f"{rows}, {weight}: ours")
    return Row(
        f"product of {rows} rows, {weight}", "us", "products", value, share, aim_share=aim_share
    )


def _quantised(rows: int, kind: str, aim_share: float) -> Row:
    name = f"{rows}, gate\\+up, {kind}"
    share = f"{name}: share of the limit"
    return Row(
        f"product of {rows} rows, gate+up in {kind}",
        "us",
        "quantised",
        name,
        share,
        aim_share=aim_share,
    )


def _beside_bfloat16(rows: int, kind: str, aim_share: float) -> Row:
    name = f"{rows}, gate\\+up"
    return Row(
        f"product of {rows} rows, gate+up in {kind}, beside bfloat16",
        "us",
        "quantised",
        f"{name}, {kind}",
        floor=f"{name}, bfloat16",
        aim_share=aim_share,
    )


ROWS: Final = (
    Row(
        "8B: one stream, a token",
        "ms",
        "engine",
        "pagemesh: one stream",
        floor="one stream, least time for its bytes",
        aim=4.1,
    ),
    _decode("8B: graph of 1 row, context 512", 1, 0.85),
    Row(
        "8B: the same with top-p 0.95, whole step",
        "ms",
        "step",
        _step(1, "top-p", "step, overlapped"),
        aim=4.3,
    ),
    _decode("8B: graph of 64 rows, context 512", 64, 0.75),
    Row(
        "8B: device idle between steps of 64 rows",
        "",
        "step",
        _step(64, "greedy", "overlapped step outside the graph"),
        aim=0.03,
    ),
    Row(
        "8B: 64 decodes and 512 tokens, host of an eager step",
        "ms",
        "step",
        r"8B, eager, 64 decodes \+ 512 tokens: host until launched",
        aim=4.0,
    ),
    _decode("30B-A3B: graph of 1 row, context 512", 1, 0.6, model="30B-A3B"),
    Row(
        "8B: first token of a prompt of 4,096",
        "ms",
        "engine",
        "pagemesh: TTFT of 4096 tokens",
        floor="TTFT, least time for its products",
        aim=150.0,
    ),
    Row("8B: 64 requests, 256 tokens in and out", "tokens/s", "engine", "pagemesh: 64 streams"),
    Row("8B: from the start of the process until ready", "s", "engine", "pagemesh: ready", aim=60),
    Row(
        "8B: one stream, 512 tokens in a step",
        "ms",
        "engine-512",
        "pagemesh: one stream",
        floor="one stream, least time for its bytes",
    ),
    Row(
        "8B: the prompt of 4,096 with 512 tokens in a step",
        "ms",
        "engine-512",
        "pagemesh: TTFT of 4096 tokens",
        floor="TTFT, least time for its products",
    ),
    Row("8B: one stream, KV of 8 bits", "ms", "engine-fp8", "pagemesh: one stream"),
    Row("8B: 64 requests, KV of 8 bits", "tokens/s", "engine-fp8", "pagemesh: 64 streams"),
    Row("transformers: one stream, a token", "ms", "transformers", "transformers.*: one stream"),
    Row(
        "transformers: 64 requests", "tokens/s", "transformers", "transformers.*: 64 streams"
    ),
    _product(1, "gate+up", 0.85),
    _product(1, "head", 0.85),
    _product(64, "gate+up", 0.75),
    _product(64, "head", 0.75),
    _product(8192, "gate+up", 0.6),
    _product(8192, "o", 0.5),
    _product(8192, "down", 0.5),
    _quantised(1, "int4", 0.8),
    _quantised(1, "Q4_K", 0.8),
    _quantised(1, "FP8", 0.8),
    _quantised(1, "MXFP4", 0.8),
    _quantised(1, "W8A8", 0.8),
    _quantised(64, "int4", 0.6),
    _beside_bfloat16(512, "FP8 x FP8", 1.2),
    _beside_bfloat16(512, "FP8 x FP8 in blocks", 1.2),
    Row(
        "attention of 64 decodes at 8,192",
        "us",
        "attention",
        r"64 x 8192 bf16: \d+x\d+ [^,]*",
        r"64 x 8192 bf16: \d+x\d+ [^,]*, share of copy",
        aim_share=0.8,
    ),
    Row(
        "attention of a prompt of 8,192",
        "TFLOP/s",
        "attention",
        r"prompt of 8192, \d+x\d+ .*",
        floor="product of bfloat16, 8192 each way",
        aim=320.0,
        is_rate=True,
    ),
    Row("draw of a list of 30,000", "us", "draw", "1, best 16 above: draw kernel", aim=100.0),
    Row(
        "8B: memory over the engine's share after 64 sampled streams",
        "GB",
        "memory",
        "memory after sampled streams, over the share",
        aim=0.3,
    ),
    Row(
        "KV of 32 MiB from another process, read and written",
        "GB/s",
        "kv",
        "32 MiB, device copy",
        aim=1000.0,
        is_rate=True,
    ),
    Row("the same by buffers of the host", "GB/s", "kv", "32 MiB, by the host"),
)  # fmt: skip


class Line(NamedTuple):
    """A row with what was measured."""

    row: Row
    value: float | None
    floor: float | None

    @property
    def share(self) -> float | None:
        """Of the floor, which a rate has above it."""
        if not self.value or not self.floor:
            return None
        return self.value / self.floor if self.row.is_rate else self.floor / self.value

    @property
    def verdict(self) -> str:
        """Whether the aim was met; empty without one."""
        row, share = self.row, self.share
        if self.value is None:
            return "not measured"
        if row.aim_share is not None and share is not None and self.floor is not None:
            if self.floor * _MICROSECONDS[row.unit] < LEAST_US:
                return "too short for its aim"
            return "met" if share >= row.aim_share else "MISSED"
        if row.aim is None:
            return ""
        is_met = self.value >= row.aim if row.is_rate else self.value <= row.aim
        return "met" if is_met else "MISSED"

    @property
    def cells(self) -> tuple[str, ...]:
        """As the table has them."""
        row, sign = self.row, ">=" if self.row.is_rate else "<="
        aim = "" if row.aim is None else f"{sign} {row.aim:g}"
        if row.aim_share is not None:
            aim = f"share {row.aim_share:g}"
        share = "" if self.share is None else f"{self.share:.2f}"
        return (
            row.name,
            _number(self.value),
            row.unit,
            _number(self.floor),
            aim,
            share,
            self.verdict,
        )


HEAD: Final = ("figure", "value", "", "floor", "aim", "share", "")


def table(folder: Path, slices: Sequence[Slice], rows: Sequence[Row] = ROWS) -> str:
    """Of all that the folder has."""
    values = {
        command.name: _values(folder / part.folder / f"{command.name}{command.figures}")
        for part in slices
        for command in part.commands
        if command.name in read(folder / part.folder / FILE).get("commands", {})
    }
    lines = [_line(row, values.get(row.command, {})).cells for row in rows]
    return _aligned([HEAD, *lines])


def _line(row: Row, values: dict[str, float]) -> Line:
    value, share, floor = (_find(values, name) for name in (row.value, row.share, row.floor))
    if value is not None and share is not None:
        floor = value * share
    return Line(row, value, floor)


def _find(values: dict[str, float], name: str) -> float | None:
    if not name:
        return None
    return next((value for key, value in values.items() if re.fullmatch(name, key)), None)


def _values(path: Path) -> dict[str, float]:
    """Figures by name; none where a command got nowhere."""
    if path.suffix != ".json":
        return {}
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    except (OSError, ValueError, KeyError):
        return {}
    return {figure["name"]: figure["value"] for figure in figures}


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if value < 1000 else f"{value:,.0f}"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = (0, 2, 6)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
