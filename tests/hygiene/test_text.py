"""What people read is about the project alone, and nothing in it is left for later."""

from __future__ import annotations

import re
from pathlib import Path

from tests.hygiene.tree import ROOT, files, is_generated, name_of

READABLE = (
    ".py", ".md", ".proto", ".toml", ".yaml", ".yml", ".txt", ".json", ".lua", ".tpl", ".sh",
    "Makefile", "Dockerfile", "run",
)  # fmt: skip
LEFT_FOR_LATER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
SOMEBODYS_FOLDER = re.compile(r"(?<![\w.$}:/-])/(home|root|Users|mnt)/\w")
ITSELF = Path(__file__).resolve()


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in files(*READABLE)
        if path != ITSELF and not is_generated(path)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_nothing_is_left_for_later() -> None:
    assert lines_with(LEFT_FOR_LATER) == []


def test_no_path_of_somebodys_machine() -> None:
    assert lines_with(SOMEBODYS_FOLDER) == []


def test_paths_are_told_from_routes_and_words() -> None:
    assert SOMEBODYS_FOLDER.search('open("/home/me/model")')
    assert SOMEBODYS_FOLDER.search("see /mnt/notes.md")
    assert not SOMEBODYS_FOLDER.search("https://example.com/home/page")
    assert not SOMEBODYS_FOLDER.search("network/home/x")


def test_the_licence_is_the_plain_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert text.lstrip().startswith("Apache License\n                           Version 2.0")
    assert "Copyright [yyyy] [name of copyright owner]" in text
    assert len(text.split()) == 1581
