"""A digest of all that compiling an operation's kernels depends on but the compiler: whether a table is of these kernels."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import triton.language as tl
from triton.runtime.jit import JITFunction

from tools.kernel_signature import signature_of
from tools.kernel_table import Variant

_SIZE: Final = 8


def digests(variants: Iterable[Variant]) -> dict[str, str]:
    """By operation: of its kernels' code, without comments, and of how its cases start them on each GPU."""
    found: dict[str, Any] = {}
    for variant in variants:
        launch = variant.launch
        parts = (
            variant.case,
            variant.target,
            signature_of(launch),
            sorted(launch.options.items()),
            *code_of(launch.kernel),
        )
        state = found.setdefault(variant.op, hashlib.blake2b(digest_size=_SIZE))
        state.update("\0".join(map(str, parts)).encode())
    return {op: state.hexdigest() for op, state in found.items()}


def code_of(kernel: Any) -> Iterator[str]:
    """Of a kernel and of each that it calls: the text, and the constants of its module that it names."""
    waiting, seen = [kernel], {kernel.fn}
    while waiting:
        function = waiting.pop()
        # Of Triton's copy, which begins behind the decorators.
        definition = ast.parse(function.src)
        yield ast.unparse(definition)
        for name in sorted(_names(definition) & function.fn.__globals__.keys()):
            value = function.fn.__globals__[name]
            if isinstance(value, JITFunction) and value.fn not in seen:
                seen.add(value.fn)
                waiting.append(value)
            elif isinstance(value, (tl.constexpr, bool, int, float, str)):
                yield f"{name} = {value}"


def _names(definition: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
