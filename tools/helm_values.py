"""Writes charts/pagemesh/README.md: the values of the chart, from the comments in values.yaml.

    python tools/helm_values.py

PyYAML forgets comments, so lines are read here: a key's comment is the lines with # right above it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

CHART = Path(__file__).resolve().parents[1] / "charts/pagemesh"
_LINE = re.compile(r"^(?P<indent> *)(?P<item>- )?(?P<key>[A-Za-z][\w.-]*):(?: +(?P<value>.*))?$")
_HEAD = """# pagemesh

{description}. [docs/deployment/kubernetes.md](../../docs/deployment/kubernetes.md) says how to install it, and why things are as they are.

```sh
helm install mesh charts/pagemesh
```

installs the demo model on CPUs. `ci/` has values for other set-ups, each of which is linted, rendered and checked by `make chart-test`:

{setups}

A wrong value is refused by the name of its key before anything is installed: unknown keys too.

## Values

Made from `values.yaml` by `python tools/helm_values.py`. `models[]` stands for each entry of the list. Kubernetes' own objects (`resources`, `tolerations`, `affinity` and the like) are written as Kubernetes has them.
"""
_TABLE = ["| key | default | |", "|---|---|---|"]


class Value(NamedTuple):
    """One key of values.yaml."""

    path: str
    """With dots, and [] behind a list whose entries have keys."""

    default: str | None
    """As it is written; None for a key with keys below it."""

    comment: str


def read(path: Path) -> list[Value]:
    """All keys of a file of values, in its order."""
    return read_text(path.read_text(encoding="utf-8"))


def read_text(text: str) -> list[Value]:
    """All keys that stand at the beginning of a line, with their comments."""
    return list(_read(text))


def _read(text: str) -> Iterator[Value]:
    above: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("# "):
            comment.append(line.strip("# "))
            continue
        match = _LINE.match(line)
        if match is None:
            comment = []
            continue
        depth = len(match["indent"]) + len(match["item"] or "")
        while above and above[-1][0] >= depth:
            above.pop()
        if match["item"]:
            indent, name = above.pop()
            above.append((indent, name.removesuffix("[]") + "[]"))
        path = ".".join([*(name for _, name in above), match["key"]])
        yield Value(path, match["value"], " ".join(comment))
        above.append((depth, match["key"]))
        comment = []


def readme(chart: Path) -> str:
    """The text of README.md."""
    metadata = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    setups = [
        f"- `{path.relative_to(chart)}`: {path.read_text(encoding='utf-8').splitlines()[0].strip('# ')}"
        for path in sorted(chart.glob("ci/*.yaml"))
    ]
    values = read(chart / "values.yaml")
    alone = [_row(value) for value in values if "." not in value.path and value.default is not None]
    lines = [
        _HEAD.format(description=metadata["description"], setups="\n".join(setups)),
        *_TABLE,
        *alone,
    ]
    for value in values:
        if "." in value.path:
            lines.append(_row(value))
        elif value.default is None:
            lines += [f"\n### {value.path}\n", f"{value.comment}\n", *_TABLE]
    return "\n".join(lines) + "\n"


def _row(value: Value) -> str:
    default = "" if value.default is None else f"`{value.default}`"
    return f"| `{value.path}` | {default} | {value.comment.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    (CHART / "README.md").write_text(readme(CHART), encoding="utf-8")
    print(f"wrote {CHART / 'README.md'}")
