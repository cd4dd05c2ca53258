"""Write the tables of docs/from-vllm.md: what becomes of each flag of `vllm serve`, and of its variables.

python -m tools.vllm_flags [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pagemesh.cli.settings import UpConfig
from pagemesh.cli.vllm.environment import READ
from pagemesh.cli.vllm.flags import MODES, RULES
from pagemesh.cli.vllm.rules import Fate, Rule, own_flags

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs/from-vllm.md"
NAMES: Final = ROOT / "tests/unit/cli/vllm/vllm_serve_flags.txt"
"""Flags of `vllm serve`, one a line, without `no-`."""

_BEGIN: Final = "<!-- made by tools/vllm_flags.py -->\n"
_END: Final = "<!-- end -->\n"


def page(text: str) -> str:
    """The page with its tables as they should be."""
    head, _, rest = text.partition(_BEGIN)
    tail = rest.partition(_END)[2]
    return f"{head}{_BEGIN}\n{_tables()}\n{_END}{tail}"


def _tables() -> str:
    own = own_flags(UpConfig)
    rows = ["| flag | here | |", "|---|---|---|"]
    for flag in NAMES.read_text(encoding="utf-8").split():
        here, says = _entry(flag, flag in own)
        rows.append(f"| `{flag}` | {here} | {says} |")
    rows += ["", "| variable | here |", "|---|---|"]
    rows += [f"| `{name}` | {means}: `{flag}` |" for name, (flag, means) in READ.items()]
    return "\n".join([*rows, ""])


def _entry(flag: str, is_ours: bool) -> tuple[str, str]:
    if flag == "--performance-mode":
        modes = (f"{mode}: {_flags(flags)}" for mode, flags in MODES.items())
        return "renamed", "; ".join(modes)
    rule = RULES.get(flag)
    if rule is None:
        return ("same", "") if is_ours or flag == "--help" else ("unknown", "")
    if rule.fate is Fate.SAME:
        return "same", rule.says
    if is_ours:
        return "same", f"also {_values(rule)}"
    return rule.fate.value, _says(rule)


def _flags(flags: Mapping[str, str]) -> str:
    return " ".join(f"`{flag} {value}`" for flag, value in flags.items()) or "as without"


def _values(rule: Rule) -> str:
    return ", ".join(f"`{theirs}` for `{ours}`" for theirs, ours in rule.values.items())


def _says(rule: Rule) -> str:
    if rule.fate is Fate.RENAMED:
        values = f"; {_values(rule)}" if rule.values else ""
        return f"`{rule.flag}`{values}"
    if rule.neutral:
        accepted = ", ".join(f"`{value}`" for value in rule.neutral)
        return f"taken with {accepted}; {rule.says}"
    return rule.says


def main() -> None:
    """Write, or check when asked to."""
    text = PAGE.read_text(encoding="utf-8")
    if sys.argv[1:] == ["--check"]:
        sys.exit(page(text) != text)
    PAGE.write_text(page(text), encoding="utf-8")


if __name__ == "__main__":
    main()
