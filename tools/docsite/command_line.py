"""The flags of every command, from the dataclasses that the command line is made of."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pagemesh.cli.main import COMMANDS
from tools.docsite.cells import table


class Flag(NamedTuple):
    """One flag of one command."""

    name: str
    """As it is typed."""

    values: str
    """What may stand behind it."""

    default: str
    """What holds without it."""

    meaning: str
    """The text below the field."""


def markdown() -> str:
    """All commands with their flags."""
    parts = []
    for name, command in COMMANDS.items():
        parts += [f"## pagemesh {name}", f"{command.summary.capitalize()}."]
        if command.positional:
            parts.append(
                f"The first argument is the value of `{command.positional}` unless it is a flag."
            )
        for title, flags in areas(command.settings):
            if title:
                parts.append(f"**{title}**")
            rows = [(f"`{flag.name}`", flag.values, flag.default, flag.meaning) for flag in flags]
            parts.append(table(("flag", "value", "default", ""), rows))
    return "\n\n".join(parts)


def areas(settings: type[Any]) -> Iterator[tuple[str, list[Flag]]]:
    """The flags that stand in the dataclass itself, then those of each dataclass in it with its title."""
    hints = get_type_hints(settings)
    texts = _field_texts(settings)
    own: list[Flag] = []
    nested: list[type[Any]] = []
    for field in dataclasses.fields(settings):
        kind: Any = hints[field.name]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            nested.append(kind)
        else:
            own.append(_flag(field, kind, texts.get(field.name, "")))
    if own:
        yield "", own
    for kind in nested:
        title = (kind.__doc__ or "").split("\n\n")[0].strip()
        for number, (inner, flags) in enumerate(areas(kind)):
            yield (inner or (title if number == 0 else "")), flags


def _flag(field: dataclasses.Field[Any], kind: Any, text: str) -> Flag:
    flag = "--" + field.name.replace("_", "-")
    if kind is bool:
        flag = f"{flag}`, `--no-{flag.removeprefix('--')}"
    return Flag(flag, _values(kind), _default(field), text)


def _values(kind: Any) -> str:
    if kind is bool:
        return ""
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return ", ".join(_values(each) for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is tuple:
        return f"{_values(get_args(kind)[0])} …"
    name: str = kind.__name__
    return {"str": "text", "int": "number", "float": "number"}.get(name, name)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        if field.default_factory is dataclasses.MISSING:
            return "**needed**"
        default = field.default_factory()
    else:
        default = field.default
    if default is None or default in ("", ()):
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return " ".join(f"`{value}`" for value in default)
    return f"`{default}`"


def _field_texts(settings: type[Any]) -> dict[str, str]:
    """The text below each field."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = text
    return texts
