"""Compiles every kernel for the GPUs that it is meant for, without one, and tabulates what it takes.

    python -m tools.kernel_resources           writes docs/kernel-resources.md
    python -m tools.kernel_resources --check   fails when the table is not what the kernels take
    python -m tools.kernel_resources --stale   fails when it is of other kernels; compiles nothing

The cases of `tools/kernel_cases` say how kernels are started. They are compiled as they would be at their
first start on a GPU, by the Triton that is installed, whose version the table names. A kernel that spills
more than a few registers or wants more shared memory than a program can have is refused in either case.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import multiprocessing
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

# Kernels are made for the interpreter or for a compiler when they are imported.
os.environ.pop("TRITON_INTERPRET", None)

from pagemesh.kernels.dispatch import using
from pagemesh.kernels.launch import noting
from pagemesh.kernels.target import TARGETS, playing
from tools import kernel_cases
from tools.kernel_compile import compile_variant
from tools.kernel_digest import digests
from tools.kernel_signature import signature_of
from tools.kernel_table import Resources, Variant, defects, digests_in, table, version_text

ROOT: Final = Path(__file__).resolve().parent.parent
TABLE: Final = ROOT / "docs/kernel-resources.md"


def variants(ops: Iterable[str]) -> Iterator[Variant]:
    """Every kernel of every case on every target; what is compiled alike comes once per target."""
    for op in ops:
        module = importlib.import_module(f"tools.kernel_cases.{op}")
        for target in TARGETS.values():
            seen = set()
            with playing(target), using("cuda"):
                for case in module.cases():
                    with noting() as launches:
                        case.run()
                    for launch in launches:
                        key = (
                            launch.kernel.__name__,
                            str(signature_of(launch)),
                            str(launch.options),
                        )
                        if key not in seen:
                            seen.add(key)
                            yield Variant(op, case.name, target, launch)


_work: list[Variant] = []


def _compile_number(number: int) -> Resources:
    return compile_variant(_work[number])


def compile_all(found: list[Variant]) -> list[Resources]:
    """Compile them on all cores. Kernels do not travel between processes, so workers are forked."""
    _work[:] = found
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(os.cpu_count(), context) as pool:
        return list(pool.map(_compile_number, range(len(found))))


def main() -> int:
    """Write or check the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    checks = parser.add_mutually_exclusive_group()
    checks.add_argument("--check", action="store_true", help="compare with the committed table")
    checks.add_argument("--stale", action="store_true", help="compare the code that it was made of")
    parser.add_argument("--op", action="append", help="print the table of this operation alone")
    arguments: Any = parser.parse_args()
    modules = (module.name for module in pkgutil.iter_modules(kernel_cases.__path__))
    known = [name for name in modules if name != "case"]
    found = list(variants(arguments.op or known))
    if arguments.stale:
        return _compare_digests(digests(found))
    results = list(zip(found, compile_all(found), strict=True))
    text = table(results, digests(found))
    for defect in (wrong := defects(results)):
        print(defect, file=sys.stderr)
    if arguments.op:
        print(text)
    elif not arguments.check:
        TABLE.write_text(text, encoding="utf-8")
    elif not _compare_tables(text):
        return 1
    return 1 if wrong else 0


def _compare_digests(found: Mapping[str, str]) -> int:
    written = digests_in(TABLE.read_text(encoding="utf-8"))
    changed = [op for op in {**written, **found} if written.get(op) != found.get(op)]
    if not changed or not _made_by_this_triton():
        return 0
    print(f"docs/kernel-resources.md is of other kernels of {', '.join(changed)}: run make kernels")
    return 1


def _compare_tables(text: str) -> bool:
    known = TABLE.read_text(encoding="utf-8")
    if known == text or not _made_by_this_triton():
        return True
    print("docs/kernel-resources.md is out of date: run make kernels")
    print(*difflib.unified_diff(known.splitlines(), text.splitlines(), lineterm=""), sep="\n")
    return False


def _made_by_this_triton() -> bool:
    if version_text() in TABLE.read_text(encoding="utf-8"):
        return True
    print(f"not compared: the table was not made {version_text()}")
    return False


if __name__ == "__main__":
    sys.exit(main())
