"""The code does not become harder to read than it is; what became easier stays so."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from scripts.house import measure
from tests.hygiene.tree import ROOT


def budget(section: str) -> Mapping[str, int]:
    """How much there may be, by what it is."""
    text = (ROOT / "tests/hygiene/structure.toml").read_text(encoding="utf-8")
    numbers: Mapping[str, int] = tomllib.loads(text)[section]
    return numbers


def complaints(
    figures: Mapping[str, int], most: Mapping[str, int], script: str = "house"
) -> list[str]:
    """What is above its number, and which numbers have to be lowered; `script` lists what is behind the figures."""
    assert figures.keys() == most.keys()
    texts = []
    for what, number in figures.items():
        if number > most[what]:
            texts.append(
                f"{what}: {number}, at most {most[what]} (python -m scripts.{script} --list)"
            )
        elif number < most[what]:
            texts.append(f"{what}: lower the number from {most[what]} to {number}")
    return texts


def test_nothing_becomes_harder_to_read() -> None:
    assert complaints(measure(ROOT).figures, budget("most")) == []


def test_numbers_only_fall() -> None:
    assert complaints({"cycles": 3}, {"cycles": 3}) == []
    assert complaints({"cycles": 4}, {"cycles": 3}) == [
        "cycles: 4, at most 3 (python -m scripts.house --list)"
    ]
    assert complaints({"cycles": 2}, {"cycles": 3}) == ["cycles: lower the number from 3 to 2"]


FILES = {
    "a/one.py": "from pagemesh.b.two import Two\nclass Inner:\n    def read(self, name): ...\n",
    "b/two.py": (
        "from typing import Protocol\nfrom pagemesh.a import one\n"
        "class Two(Protocol):\n    def read(self, name): ...\n"
        "class Traced:\n    def __init__(self, inner): ...\n    def read(self, name): ...\n"
    ),
    "b/three.py": "from pagemesh.a.one import Inner\nclass Traced:\n    pass\n",
}


def test_files_packages_interfaces_and_names_are_counted(tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / "src/pagemesh" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "fake.py").write_text("class Fake:\n    def read(self, name): ...\n", encoding="utf-8")
    structure = measure(tmp_path)
    assert structure.figures["product files"] == 3
    assert structure.lists["packages in cycles"] == ["a", "b"]
    assert structure.lists["file cycles"] == ["a.one ↔ b.two"]
    assert structure.lists["wrappers (constructors that take `inner`)"] == ["b.two:Traced"]
    assert structure.lists["Protocols with one implementor and a fake"] == ["b.two:Two"]
    assert structure.lists["Protocols with one implementor and no fake"] == []
    assert structure.lists["class names that are used twice"] == ["Traced"]
    assert structure.lists["files of less than 60 lines with one importer"] == ["b.two"]
