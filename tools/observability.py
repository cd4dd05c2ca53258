"""Makes what Prometheus, Grafana and people need to know of the metrics, from their declarations.

python -m tools.observability           writes docs/metrics.md, docs/alerts.md, and rules and dashboards
python -m tools.observability --check   fails when one of them is not what the declarations say
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.monitoring.files import generated

ROOT = Path(__file__).resolve().parent.parent
DASHBOARDS = (
    "deploy/observability/grafana/dashboards",
    "charts/pagemesh/files/monitoring/dashboards",
)


def stale() -> list[str]:
    """Paths of files that are missing, or are not what would be made, or would not be made any more."""
    files = generated()
    wrong = [
        path
        for path, text in files.items()
        if not (ROOT / path).is_file() or (ROOT / path).read_text(encoding="utf-8") != text
    ]
    boards = {
        path.relative_to(ROOT).as_posix()
        for folder in DASHBOARDS
        for path in (ROOT / folder).glob("*.json")
    }
    return sorted({*wrong, *(boards - files.keys())})


def main() -> None:
    """Write, or check when asked to."""
    if sys.argv[1:] == ["--check"]:
        found = stale()
        for path in found:
            print(f"{path} is not what `make observability` makes")
        sys.exit(1 if found else 0)
    for path in stale():
        (ROOT / path).unlink(missing_ok=True)
    for path, text in generated().items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
