"""Draws the pictures of the documents from the code that they show.

python -m tools.pictures           writes docs/pictures/
python -m tools.pictures --check   fails when a picture is not what the code gives
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Final

from tools.docsite.pages import ROOT
from tools.pictures import architecture, batching, blocks, request, routing, transfer

FOLDER: Final = ROOT / "docs/pictures"
PICTURES: Final[dict[str, Callable[[], str]]] = {
    "architecture": architecture.draw,
    "batching": batching.draw,
    "blocks": blocks.draw,
    "request": request.draw,
    "routing": routing.draw,
    "transfer": transfer.draw,
}


def stale() -> list[str]:
    """Names of the pictures that are not as the code gives them, or that nobody draws."""
    files = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.svg")}
    drawn = {name: draw() for name, draw in PICTURES.items()}
    return sorted(name for name in files | drawn if files.get(name) != drawn.get(name))


def main() -> int:
    """Write or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed ones")
    if parser.parse_args().check:
        if names := stale():
            print(f"out of date: {', '.join(names)}; run python -m tools.pictures")
            return 1
        return 0
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
