"""Dumps what a mesh tells of a scripted run, to compare two trees. `python -m scripts.run_dump [--tree FOLDER] [--json FILE]`.

A mesh of the tree (this one, or a worktree of another commit) answers a fixed row of requests. The dump has the spans,
the metrics and the log lines that came of it, without what differs between two runs of the same tree. So a change of
the code's arrangement alone leaves the dump as it is:

    git worktree add /var/tmp/before COMMIT
    python -m scripts.run_dump --tree /var/tmp/before --json before.json
    python -m scripts.run_dump --json after.json
    python -m scripts.run_dump --compare before.json after.json

Both trees run in this environment, with this tree's demo model.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scripts.house import ROOT
from scripts.run_dump.left_out import Dump, Entry, left_out
from scripts.run_dump.mesh import dumped_mesh
from scripts.run_dump.requests import run

LONGEST: Final = 160
"""Characters of a value that are shown."""


def record(tree: Path, folder: Path) -> list[Entry]:
    """All of one run; the mesh logs into the folder. Takes about two minutes."""
    with dumped_mesh(tree, folder) as dumped:
        return run(dumped)


def differences(before: Dump, after: Dump) -> Iterator[str]:
    """A line for each entry that is not the same, a value of before with -, one of after with +."""
    for path in sorted(before.keys() | after.keys()):
        if path in before and path in after and before[path] == after[path]:
            continue
        for sign, entries in (("-", before), ("+", after)):
            if path in entries:
                yield f"{sign} {path}: {_shown(entries[path])}"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def compare(before: Path, after: Path) -> int:
    """Print what differs; the exit status."""
    # By the rules of now: those by which an older dump was made may have been fewer.
    dumps = (left_out(json.loads(path.read_text()).items()) for path in (before, after))
    lines = list(differences(*dumps))
    print(*(lines or [f"{before} and {after} are equal"]), sep="\n")
    return 1 if lines else 0


def main() -> None:
    """Dump a run, or compare two dumps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(".")[0])
    parser.add_argument(
        "--tree",
        type=Path,
        default=ROOT,
        metavar="FOLDER",
        help="whose mesh; this tree's unless given",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="where the dump goes, not to stdout"
    )
    parser.add_argument(
        "--compare",
        type=Path,
        nargs=2,
        metavar=("BEFORE", "AFTER"),
        help="two dumps; exits with 1 where they differ",
    )
    options = parser.parse_args()
    if options.compare:
        sys.exit(compare(*options.compare))
    # Ends the mesh as well.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = left_out(record(options.tree.resolve(), Path(folder)))
    except (AssertionError, RuntimeError, OSError) as error:
        sys.exit(f"not dumped: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    text = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False)
    if options.json:
        options.json.write_text(f"{text}\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
