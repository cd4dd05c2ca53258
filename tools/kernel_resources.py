"""Compiles every kernel for the GPUs that it is meant for, without one, and tabulates what it takes.

    python -m tools.kernel_resources           writes docs/kernel-resources.md
    python -m tools.kernel_resources --check   fails when the tables are not what the kernels take
    python -m tools.kernel_resources --stale   fails when they are of other kernels; compiles nothing

The cases of `tools/kernel_cases` say how kernels are started. They are compiled as they would be at their
first start on a GPU, by the Triton that is installed and by an older one that people have, which is fetched. A
kernel that spills more than a few registers, wants more shared memory than a program can have, or loads nothing
ahead in its loop is refused with either.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

# Kernels are made for the interpreter or for a compiler when they are imported.
os.environ.pop("TRITON_INTERPRET", None)

import triton

from pagemesh.kernels.dispatch import using
from pagemesh.kernels.launch import noting
from pagemesh.kernels.target import TARGETS, playing
from tools import kernel_cases
from tools.kernel_compile import as_json, compile_all, compile_with
from tools.kernel_digest import digests
from tools.kernel_signature import signature_of
from tools.kernel_table import Variant, defects, digests_in, document, version_text

ROOT: Final = Path(__file__).resolve().parent.parent
TABLE: Final = ROOT / "docs/kernel-resources.md"
OLDER: Final = "triton==3.6.0"
"""That of PyTorch 2.11, the oldest that may be installed on GPUs."""


def variants_of(ops: Iterable[str]) -> Iterator[Variant]:
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


def main() -> int:
    """Write or check the tables."""
    arguments = _arguments()
    modules = (module.name for module in pkgutil.iter_modules(kernel_cases.__path__))
    ops = arguments.op or [name for name in modules if name != "case"]
    variants = list(variants_of(ops))
    if arguments.stale:
        return _compare_digests(digests(variants))
    compiled = compile_all(variants)
    if arguments.json:
        print(as_json(compiled))
        return 0
    found = {triton.__version__: compiled, OLDER.split("==")[1]: compile_with(OLDER, ops)}
    text = document(variants, found, digests(variants))
    for defect in (wrong := defects(variants, found)):
        print(defect, file=sys.stderr)
    if arguments.op:
        print(text)
    elif not arguments.check:
        TABLE.write_text(text, encoding="utf-8")
    elif not _compare_tables(text):
        return 1
    return 1 if wrong else 0


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    checks = parser.add_mutually_exclusive_group()
    checks.add_argument("--check", action="store_true", help="compare with the committed tables")
    checks.add_argument(
        "--stale", action="store_true", help="compare the code that they were made of"
    )
    checks.add_argument(
        "--json", action="store_true", help="print what this Triton alone makes of them"
    )
    parser.add_argument("--op", action="append", help="print the tables of this operation alone")
    return parser.parse_args()


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
    versions = version_text([triton.__version__, OLDER.split("==")[1]])
    if versions in TABLE.read_text(encoding="utf-8"):
        return True
    print(f"not compared: the tables were not made {versions}")
    return False


if __name__ == "__main__":
    sys.exit(main())
