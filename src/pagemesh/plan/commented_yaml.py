"""YAML with a comment above each value, for files that people read and edit on.

The first key of an item of a list has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Noted(NamedTuple):
    """A value, and why it is what it is."""

    value: object
    """A scalar, or what JSON has, in one line."""
    why: str


Tree = Mapping[str, "Noted | Tree | list[Tree]"]


def as_yaml(tree: Tree) -> str:
    """The text, with a newline at its end."""
    return "".join(line + "\n" for line in _lines(tree, ""))


def _lines(tree: Tree, indent: str) -> Iterator[str]:
    for key, node in tree.items():
        if isinstance(node, Noted):
            if node.why:
                yield f"{indent}# {node.why}"
            yield f"{indent}{key}: {json.dumps(node.value, ensure_ascii=False)}"
        elif isinstance(node, list):
            yield f"{indent}{key}:"
            for item in node:
                first, *others = _lines(item, indent + "    ")
                assert not first.lstrip().startswith("#"), "a dash goes before a key"
                yield f"{indent}  - {first.lstrip()}"
                yield from others
        else:
            yield f"{indent}{key}:"
            yield from _lines(node, indent + "  ")
