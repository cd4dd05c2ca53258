"""The documents say only what is so, as far as a machine can tell: commands, flags, files and links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pagemesh.cli.main import GROUPS
from pagemesh.cli.vllm.flags import RULES
from tests.hygiene.tree import ROOT, files, name_of
from tests.support.command_help import help_of

DOCUMENTS = [path for path in files(".md") if not name_of(path).startswith("tests/")]
CODE = re.compile(r"```[^\n]*\n(.*?)```|`([^`\n]+)`", re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def code_in(path: Path) -> list[str]:
    """Lines of code blocks, and code between single backticks."""
    pieces = CODE.findall(path.read_text(encoding="utf-8"))
    return [line for block, inline in pieces for line in (block or inline).splitlines()]


def in_code(pattern: str) -> list[tuple[str, str]]:
    """(document, what the pattern's group matched) over all documents."""
    found = [
        (name_of(path), match)
        for path in DOCUMENTS
        for line in code_in(path)
        for match in re.findall(pattern, line)
    ]
    assert found, f"no document has code like {pattern}: the test would check nothing"
    return found


def test_make_targets_in_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    unknown = [
        (path, name)
        for path, name in in_code(r"^\s*(?:\$ )?make ([a-z0-9-]+)")
        if name not in targets
    ]
    assert unknown == []


def test_decisions_are_numbered_one_by_one_as_their_files_say() -> None:
    records = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    numbers = [int(path.name[:4]) for path in records]
    assert numbers == list(range(1, len(records) + 1))
    titles = [path.read_text(encoding="utf-8").splitlines()[0] for path in records]
    assert [int(re.findall(r"^# (\d+)\. ", title)[0]) for title in titles] == numbers


def test_files_that_documents_run_exist() -> None:
    named = in_code(r"(?:python|pytest|ARGS=\"?) ?((?:[\w-]+/)+[\w.-]+)")
    assert [(path, file) for path, file in named if not (ROOT / file).exists()] == []


FROM_VLLM = {*RULES, "--performance-mode"}


def test_pagemesh_commands_and_flags_in_documents_exist() -> None:
    unknown = []
    # "pagemesh serves …" and "pagemesh plan: …" are what the program prints.
    for path, line in in_code(r"^\s*(?:\$ )?(?:\.venv/bin/)?(pagemesh (?!serves |\w+: )[a-z].*)"):
        _, *words = line.split("#")[0].split()
        # `pagemesh bench` has commands of its own.
        command = words[: 2 if words[0] in GROUPS else 1]
        flags = [word.split("=")[0] for word in words if word.startswith("--")]
        known = help_of(*command) + " ".join(FROM_VLLM if command == ["serve"] else ())
        unknown += [(path, command, flag) for flag in flags if flag not in known]
        if not help_of(*command):
            unknown.append((path, command, ""))
    assert unknown == []


def test_the_architecture_page_has_a_sentence_for_every_package() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    packages = {path.parent.name for path in (ROOT / "src/pagemesh").glob("*/__init__.py")}
    assert "engine_process" in packages
    assert [name for name in sorted(packages) if f"`src/pagemesh/{name}/`](" not in text] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_to_files(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [link.split("#")[0] for link in LINK.findall(text) if "://" not in link]
    assert [target for target in targets if not (path.parent / target).exists()] == []
