"""The table at the end of the suite for a rented GPU."""

from __future__ import annotations

import json
from pathlib import Path

from tools.gpu_suite.figures import LEAST_US, ROWS, Row, table
from tools.gpu_suite.record import FILE, ROOT, read
from tools.gpu_suite.slices import all_slices

SLICES = all_slices()


def play(folder: Path, name: str, figures: dict[str, float]) -> None:
    """A command of the second slice, which measured something."""
    path = folder / SLICES[1].folder
    path.mkdir(exist_ok=True)
    entries = [{"name": key, "value": value} for key, value in figures.items()]
    (path / f"{name}.json").write_text(json.dumps({"figures": entries}))
    commands = read(path / FILE).get("commands", {}) | {name: {"how": "done"}}
    (path / FILE).write_text(json.dumps({"tree": "tree", "commands": commands}))


def test_the_table_has_floors_shares_and_verdicts(tmp_path: Path) -> None:
    play(tmp_path, "step", {"slow": 4.0, "slow, share": 0.5, "short": 0.08, "short, share": 0.5})
    play(tmp_path, "draw", {"rate (a)": 300.0, "most": 400.0, "host": 5.0})
    rows = [
        Row("met", "ms", "step", "slow", "slow, share", aim_share=0.5),
        Row("missed", "ms", "step", "slow", "slow, share", aim_share=0.6),
        # Whatever came out: its floor is 40 us.
        Row("short", "ms", "step", "short", "short, share", aim_share=0.6),
        Row("rate", "TFLOP/s", "draw", "rate .*", floor="most", aim=250, is_rate=True),
        Row("host", "ms", "draw", "host", aim=4),
        Row("other", "ms", "limits", "slow", aim=4),
    ]
    _, *lines = table(tmp_path, SLICES, rows).splitlines()
    assert [line.split() for line in lines] == [
        ["met", "4", "ms", "2", "share", "0.5", "0.50", "met"],
        ["missed", "4", "ms", "2", "share", "0.6", "0.50", "MISSED"],
        [
            "short",
            "0.08",
            "ms",
            "0.04",
            "share",
            "0.6",
            "0.50",
            "too",
            "short",
            "for",
            "its",
            "aim",
        ],
        ["rate", "300", "TFLOP/s", "400", ">=", "250", "0.75", "met"],
        ["host", "5", "ms", "<=", "4", "MISSED"],
        ["other", "ms", "<=", "4", "not", "measured"],
    ]


def test_figures_of_an_earlier_tree_are_not_in_the_table_once_their_command_runs_anew(
    tmp_path: Path,
) -> None:
    play(tmp_path, "step", {"slow": 4.0})
    row = Row("old", "ms", "step", "slow")
    path = tmp_path / SLICES[1].folder / FILE
    assert "not measured" not in table(tmp_path, SLICES, [row])
    path.write_text(json.dumps({"tree": "tree", "commands": {}}))
    assert "not measured" in table(tmp_path, SLICES, [row])


def test_the_table_finds_the_figures_that_an_h200_gave(tmp_path: Path) -> None:
    for name in ("step", "products", "attention", "draw"):
        path = ROOT / f"benchmarks/results/gpu_probe_{name}.json"
        figures = json.loads(path.read_text())["figures"]
        play(tmp_path, name, {figure["name"]: figure["value"] for figure in figures})
    rows = [row for row in ROWS if row.command in ("step", "products", "attention", "draw")]
    assert len(rows) > 12
    text = table(tmp_path, SLICES, rows)
    assert "not measured" not in text
    assert "too short" not in text
    # Whatever has an aim for its share has one.
    assert all(line.split()[-2].startswith("0.") for line in text.splitlines() if "share 0" in line)


def test_the_contests_of_kernels_have_aims_where_the_table_has_them() -> None:
    text = (ROOT / "benchmarks/kernels/contest.py").read_text()
    assert f"\nLEAST_US: Final = {LEAST_US}\n" in text


def test_a_product_of_fp8_is_beside_that_of_bfloat16(tmp_path: Path) -> None:
    times = {"512, gate+up, bfloat16": 260.0, "512, gate+up, FP8 x FP8": 200.0}
    play(tmp_path, "quantised", times | {"512, gate+up, FP8 x FP8 in blocks": 240.0})
    rows = [row for row in ROWS if "beside bfloat16" in row.name]
    _, *lines = table(tmp_path, SLICES, rows).splitlines()
    assert [line.split()[-2:] for line in lines] == [["1.30", "met"], ["1.08", "MISSED"]]
