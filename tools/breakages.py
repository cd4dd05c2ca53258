"""Breaks the code on purpose, one fault at a time, and checks that the named tests then fail.

A test that fails anyway proves nothing: all named tests are run on the whole code first, unless `--passing` says that
they have just been, and the faults of those that fail there are not tried.

The faults are those of tests/breakages.toml. The tree itself is not touched: everything happens in copies of its
tracked files. `make breakages` runs it: `python -m tools.breakages [NAME ...]`.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import symbols

ROOT = Path(__file__).resolve().parent.parent
# A fault may make something hang; tests have shorter deadlines of their own.
DEADLINE_S = 600.0
UNBROKEN_DEADLINE_S = 3600.0
SOME_TESTS_FAILED = 1  # pytest's exit code
# Exhaustive tests are among those that notice a fault.
_PYTEST = (
    *(sys.executable, "-m", "pytest", "-m", "not containers"),
    *("-q", "-rf", "--tb=no", "-p", "no:cacheprovider"),
)


@dataclass(frozen=True)
class Edit:
    """Text that is replaced, in the lines of a symbol or in a file; one of the two is given."""

    find: str
    replace: str
    symbol: str = ""
    file: str = ""

    def __post_init__(self) -> None:
        if bool(self.symbol) == bool(self.file):
            raise ValueError(f"an edit has a symbol or a file: {self}")

    def path(self, tree: Path) -> Path:
        """The file that it changes; a LookupError if the symbol has none."""
        return symbols.file_of(self.symbol, tree) if self.symbol else tree / self.file

    def apply(self, text: str) -> str:
        """The text of that file afterwards; a LookupError unless `find` stands exactly once where it has to."""
        spans = symbols.spans(self.symbol, text) if self.symbol else [(0, len(text))]
        found = [(text.count(self.find, start, end), start, end) for start, end in spans]
        if sum(count for count, _, _ in found) != 1:
            raise LookupError(f"{self.symbol or self.file} has {self.find!r} not exactly once")
        at = max(text.find(self.find, start, end) for _, start, end in found)
        return text[:at] + self.replace + text[at + len(self.find) :]


@dataclass(frozen=True)
class Breakage:
    """A fault and the tests, as file::function, that must notice it."""

    name: str
    tests: Sequence[str]
    edits: Sequence[Edit]


def load_breakages() -> list[Breakage]:
    """All faults, in order."""
    table = tomllib.loads((ROOT / "tests/breakages.toml").read_text(encoding="utf-8"))
    return [_parse(entry) for entry in table["breakage"]]


def _parse(entry: Mapping[str, Any]) -> Breakage:
    return Breakage(entry["name"], entry["tests"], [Edit(**edit) for edit in entry["edits"]])


def broken_files(edits: Sequence[Edit], tree: Path) -> dict[Path, str]:
    """What the files that the edits change contain afterwards; a LookupError if one of the edits does not fit."""
    texts: dict[Path, str] = {}
    for edit in edits:
        path = edit.path(tree)
        text = texts[path] if path in texts else path.read_text(encoding="utf-8")
        texts[path] = edit.apply(text)
    return texts


def unnoticed(breakage: Breakage, tree: Path) -> list[str]:
    """The tests that do not fail although the copy of the repository in `tree` is broken."""
    broken = broken_files(breakage.edits, tree)
    originals = {path: path.read_text(encoding="utf-8") for path in broken}
    try:
        for path, text in broken.items():
            path.write_text(text, encoding="utf-8")
        return [test for test in breakage.tests if not _fails(test, tree)]
    finally:
        for path, text in originals.items():
            path.write_text(text, encoding="utf-8")


def _fails(test: str, tree: Path) -> bool:
    """Whether it does with any of its parameters; one that does not end in time has noticed nothing.

    Such a test may leave processes behind, which slow the others down.
    """
    try:
        return test in _failed_tests([test], tree, DEADLINE_S, "-x")
    except subprocess.TimeoutExpired:
        return False


def _failed_tests(tests: Sequence[str], tree: Path, deadline_s: float, *options: str) -> set[str]:
    """Functions that failed; those whose set-up failed prove nothing and are not among them."""
    roots = map(str, symbols.package_roots(tree))
    done = subprocess.run(
        [*_PYTEST, *options, *tests],
        cwd=tree,
        # Before the folders of the editable install, so that processes of the tests see them too.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(roots), "COLUMNS": "500"},
        capture_output=True,
        text=True,
        check=False,
        timeout=deadline_s,
    )
    if done.returncode not in (0, SOME_TESTS_FAILED):
        raise RuntimeError(f"pytest could not run:\n{done.stdout}{done.stderr}")
    return set(re.findall(r"^FAILED ([^\s\[]+)", done.stdout, re.MULTILINE))


def copy_tree(tree: Path) -> None:
    """Copy what git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)


def main(wanted: Sequence[str], num_jobs: int, *, are_passing: bool) -> int:
    """Try the faults, so many at once; 1 if a test did not notice one."""
    chosen = [
        breakage
        for breakage in load_breakages()
        if not wanted or any(part in breakage.name for part in wanted)
    ]
    for breakage in chosen:
        # One that does not fit is named now, not when its turn comes.
        broken_files(breakage.edits, ROOT)
    num_unnoticed = 0
    with tempfile.TemporaryDirectory(prefix="pagemesh-breakages-") as folder:
        trees = [Path(folder, str(number)) for number in range(num_jobs)]
        for tree in trees:
            copy_tree(tree)
        failing = set() if are_passing else _failing_anyway(chosen, trees[0], num_jobs)
        for test in sorted(failing):
            print(f"FAILS without any fault: {test}", flush=True)
        provable = [each for each in chosen if failing.isdisjoint(each.tests)]
        for breakage, passed, seconds in _try_all(provable, trees):
            num_unnoticed += len(passed)
            verdict = "UNNOTICED" if passed else "noticed"
            print(f"{verdict:9} {seconds:4.0f} s  {breakage.name}", flush=True)
            for test in passed:
                print(f"             passes: {test}", flush=True)
    num_skipped = len(chosen) - len(provable)
    print(
        f"{len(provable)} faults, {num_unnoticed} tests that did not notice theirs; {num_skipped} not tried"
    )
    return 1 if num_unnoticed or num_skipped or not chosen else 0


def _failing_anyway(breakages: Sequence[Breakage], tree: Path, num_jobs: int) -> set[str]:
    """Of their tests those that fail on the whole code."""
    tests = dict.fromkeys(test for breakage in breakages for test in breakage.tests)
    print(f"{len(tests)} tests without any fault first", flush=True)
    at_once = ("-n", str(num_jobs), "--dist", "loadfile")
    return _failed_tests(list(tests), tree, UNBROKEN_DEADLINE_S, *at_once)


def _try_all(
    breakages: Sequence[Breakage], trees: Sequence[Path]
) -> Iterator[tuple[Breakage, list[str], float]]:
    """Each fault, the tests that do not notice it, and how long that took; in order."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for tree in trees:
        free.put(tree)

    def attempt(breakage: Breakage) -> tuple[Breakage, list[str], float]:
        tree = free.get()
        started = time.monotonic()
        try:
            return breakage, unnoticed(breakage, tree), time.monotonic() - started
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as pool:
        yield from pool.map(attempt, breakages)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="*", help="names of faults, or parts of them; all when none")
    parser.add_argument("--jobs", type=int, default=1, help="faults that are tried at once (1)")
    parser.add_argument(
        "--passing", action="store_true", help="without any fault the tests have just passed"
    )
    arguments = parser.parse_args()
    sys.exit(main(arguments.name, max(arguments.jobs, 1), are_passing=arguments.passing))
