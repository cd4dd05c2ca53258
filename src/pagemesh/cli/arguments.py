"""Command-line arguments from settings dataclasses, and back.

Flags, types, defaults and help come from the fields and the text below each; nothing is listed twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

from pagemesh.errors import PagemeshError

Settings = TypeVar("Settings")


class UsageError(Exception):
    """The arguments cannot be understood; the text is one sentence for people."""


def parse(
    settings: type[Settings], prog: str, description: str, arguments: Sequence[str]
) -> Settings:
    """Build `settings` from `arguments`; `--help` prints and exits.

    Raises UsageError for unknown flags and values of the wrong type, ConfigError for refused values.
    """
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                settings,
                prog=prog,
                description=description,
                args=arguments,
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        raise UsageError(f"{_first_paragraph(complaint.getvalue())}; see {prog} --help") from None


def _first_paragraph(box: str) -> str:
    """What tyro has to say, without the title, the frame and the hints around it.

    The frame is drawn with lines, or with dashes where the terminal has no UTF-8.
    """
    words: list[str] = []
    for line in box.splitlines()[1:]:
        text = line.strip("│ ")
        if text.strip("─-╰╯"):
            words.extend(text.split())
        elif words:
            break
    return " ".join(words).rstrip(".") or "the arguments cannot be understood"


def to_arguments(settings: Any) -> list[str]:
    """Arguments from which `parse` builds equal settings; defaults are left out, and what follows from the others."""
    arguments: list[str] = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        flag = field.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            arguments += to_arguments(value)
        elif value == field.default or value is None or _follows(settings, field):
            continue
        elif isinstance(value, bool):
            arguments.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple):
            arguments += [f"--{flag}", *map(str, value)]
        else:
            arguments += [f"--{flag}", str(value)]
    return arguments


def _follows(settings: Any, field: dataclasses.Field[Any]) -> bool:
    """Whether the settings make the value of themselves when it is left out."""
    if field.default is dataclasses.MISSING:
        return False
    try:
        return bool(dataclasses.replace(settings, **{field.name: field.default}) == settings)
    except PagemeshError:
        return False
