"""A table of kernels is stale when their code, or a kernel or constant that they name, is another."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import triton.language as tl
from triton.runtime.jit import JITFunction

from tools.kernel_digest import code_of

SOURCE = """
SIZE = 8

def add(left, right):
    return left + right

def kernel(rows, size):
    # Twice.
    return add(rows, SIZE) + add(rows, size)
"""


def code(folder: Path, source: str) -> list[str]:
    path = folder / "kernels_of_a_test.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("kernels_of_a_test", path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SIZE, module.add = tl.constexpr(module.SIZE), JITFunction(module.add)
    return list(code_of(JITFunction(module.kernel)))


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        pytest.param("# Twice.", "# Two times.", True, id="a comment"),
        pytest.param("SIZE = 8", "\n\nSIZE = 8", True, id="its place"),
        pytest.param("+ add(rows, size)", "- add(rows, size)", False, id="the kernel"),
        pytest.param("left + right", "left - right", False, id="what it calls"),
        pytest.param("SIZE = 8", "SIZE = 16", False, id="a constant"),
    ],
)
def test_code_is_what_is_compiled(tmp_path: Path, before: str, after: str, same: bool) -> None:
    (tmp_path / "changed").mkdir()
    changed = code(tmp_path / "changed", SOURCE.replace(before, after))
    assert (changed == code(tmp_path, SOURCE)) is same
