"""Finds the modules whose weights a model's code reads itself, past the module that has them."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache

import torch

_INITIAL = "_init_weights"
"""The method of transformers' models that fills new weights; never called for those that were read."""


def names_of_read_weights(model: torch.nn.Module) -> frozenset[str]:
    """The X of every `….X.weight` and `….X.bias` in the files that define the model's classes.

    What is only read under another name is not found. OSError when a file cannot be had.
    """
    files = {
        base.__module__
        for module in model.modules()
        for base in type(module).__mro__
        if base.__module__.partition(".")[0] not in ("torch", "builtins")
    }
    return frozenset().union(*map(_names_in, files))


def name_of(path: str) -> str:
    """What code calls the module at a path: the last part that is no number in a list."""
    return next((part for part in reversed(path.split(".")) if not part.isdigit()), "")


@cache
def _names_in(module: str) -> frozenset[str]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return frozenset(_read_names(tree))


def _read_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef) and node.name == _INITIAL:
        return
    if isinstance(node, ast.Attribute) and node.attr in ("weight", "bias"):
        owner = node.value
        while isinstance(owner, ast.Subscript):
            owner = owner.value
        if isinstance(owner, ast.Attribute):
            yield owner.attr
    for child in ast.iter_child_nodes(node):
        yield from _read_names(child)
