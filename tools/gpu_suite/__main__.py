"""Test and measure the engine on a GPU that is rented by the minute: `python -m tools.gpu_suite FOLDER`.

Each slice takes less than nine minutes, all of them 40. What is done already, with the same tree and into
the same folder, is not done again; the last thing printed is the table of figures, floors and aims.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tools.gpu_suite import figures
from tools.gpu_suite.packages import RefusedError, install_missing, wanted
from tools.gpu_suite.record import tree_digest
from tools.gpu_suite.running import Outcome, Setup, run_slice
from tools.gpu_suite.slices import Slice, all_slices
from tools.gpu_suite.surroundings import (
    environment,
    models_in_memory,
    site_folder,
    why_no_gpu,
)

REFUSED = 2
"""Exit code where nothing was run."""


def main() -> int:
    """Run what was chosen; 1 when something failed or is left."""
    options = _options()
    slices = all_slices(toy=options.toy)
    if refusal := _refusal(options, slices):
        return _refuse(refusal)
    folder = Path(options.folder).resolve()
    if options.table:
        print(figures.table(folder, slices))
        return 0
    signal.signal(signal.SIGTERM, _stop)
    chosen = [part for part in slices if not options.slice or part.number in options.slice]
    try:
        setup = _prepare(folder, options, chosen)
    except RefusedError as error:
        return _refuse(str(error))
    outcomes = {part: _run(part, setup, options) for part in chosen}
    text = figures.table(folder, slices)
    (folder / "table.txt").write_text(text + "\n", encoding="utf-8")
    print()
    for part, outcome in outcomes.items():
        print(_summary(part, outcome))
    print(f"\n{text}")
    return 0 if all(outcome.is_whole for outcome in outcomes.values()) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_suite",
        description=__doc__,
        epilog=_list(all_slices()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder", help="for logs and figures; what it has already is not done again"
    )
    parser.add_argument("--slice", type=int, action="append", metavar="N", help="only this one")
    parser.add_argument("--only", default="", help="only these commands, with commas between")
    parser.add_argument("--wheels", default="", help="folder of packages that may be missing here")
    parser.add_argument("--seconds", type=float, help="that each slice may take, if fewer")
    parser.add_argument("--again", action="store_true", help="also what is done already")
    parser.add_argument("--table", action="store_true", help="print the table of the folder alone")
    # For tests: the device is played, on the CPU.
    parser.add_argument("--toy", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _list(slices: Sequence[Slice]) -> str:
    """Number, name, most seconds and commands of each."""
    lines = [
        f"  {part.number}  {part.name:8} {part.seconds:4.0f} s  {', '.join(each.name for each in part.commands)}"
        for part in slices
    ]
    return "\n".join(["slices:", *lines])


def _refusal(options: argparse.Namespace, slices: Sequence[Slice]) -> str:
    """What is wrong with the command line, in a sentence; empty if nothing is."""
    if not options.folder:
        return "name a folder for logs and figures: make gpu-suite OUT=folder"
    numbers = [part.number for part in slices]
    for number in options.slice or ():
        if number not in numbers:
            return f"there is no slice {number}, only {numbers[0]} to {numbers[-1]}"
    known = [
        command.name
        for part in slices
        if not options.slice or part.number in options.slice
        for command in part.commands
    ]
    for name in filter(None, options.only.split(",")):
        if name not in known:
            return f"there is no command {name!r} in these slices, only {', '.join(known)}"
    if options.seconds is not None and options.seconds <= 0:
        return f"a slice cannot take {options.seconds:g} s"
    return ""


def _prepare(folder: Path, options: argparse.Namespace, chosen: Sequence[Slice]) -> Setup:
    """The folder, the packages, the GPU, and memory for the model."""
    _make_writable(folder)
    site, tree = site_folder(), tree_digest()
    if options.toy:
        tree = f"{tree} with a played device"
    variables = environment(site, tree, os.environ)
    if not options.toy and (refusal := why_no_gpu(variables)):
        raise RefusedError(refusal)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:3.0f} s] {text}", flush=True)

    wheels = Path(options.wheels) if options.wheels else None
    for package in install_missing(site, wheels, wanted()):
        say(f"{package} is older than pyproject.toml has it")
    if not options.toy and any(each.has_model for part in chosen for each in part.commands):
        if (models := models_in_memory(variables)) is not None:
            variables["XDG_CACHE_HOME"] = str(models)
            say(f"the 8B model lies in memory, in {models}: delete that when nothing follows")
        else:
            say("the 8B model lies on disk: there is no memory for it, or XDG_CACHE_HOME is set")
    return Setup(folder, variables, tree, say)


def _make_writable(folder: Path) -> None:
    """Before anything takes time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial = folder / ".trial"
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise RefusedError(f"{folder} cannot be written: {error.strerror}") from error


def _run(part: Slice, setup: Setup, options: argparse.Namespace) -> Outcome:
    seconds = part.seconds if options.seconds is None else min(options.seconds, part.seconds)
    setup.say(f"slice {part.number}, {part.name}: at most {seconds:.0f} s")
    only = [name for name in options.only.split(",") if name]
    return run_slice(part, setup, seconds=seconds, only=only, again=options.again)


def _summary(part: Slice, outcome: Outcome) -> str:
    """What came of a slice, in a line."""
    parts = [f"{name} {how}" for name, how in outcome.ended.items() if how != "done"]
    if outcome.left:
        parts.append(f"no time for {', '.join(outcome.left)}: the same command goes on there")
    return f"slice {part.number}, {part.name}: {'; '.join(parts) or 'done'}"


def _refuse(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return REFUSED


def _stop(signum: int, frame: FrameType | None) -> None:
    """Children go as well: they are in groups of their own."""
    sys.exit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
