from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.merge import main
from scripts.merging import MergeError, merge
from tests.unit.scripts.small_repository import DESK, MAIN, commit_texts, make, read, run_git

BELL = "src/pagemesh/post/bell.py"
RING = "src/pagemesh/post/ring.py"
TEXTS = {
    BELL: (
        '"""Rings."""\n\nfrom __future__ import annotations\n\nfrom typing import TYPE_CHECKING\n\n'
        "from pagemesh.post.ring import LOUD, Ring\n\nif TYPE_CHECKING:\n    import decimal\n\n"
        "# Ears hear no more.\n\n\nclass Bell(Ring):\n    def strike(self, times=LOUD) -> decimal.Decimal:\n"
        "        return times\n"
    ),
    RING: (
        '"""Ring."""\n\nfrom __future__ import annotations\n\nimport math\n\n'
        "LOUD = math.inf\n\n\nclass Ring:\n    pass\n"
    ),
    "tests/unit/post/test_bell.py": (
        "from pagemesh.post.bell import Bell\nfrom pagemesh.post.ring import Ring\n\n\n"
        "def test_bell():\n    assert isinstance(Bell(), Ring)\n"
    ),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = make(tmp_path / "repository")
    commit_texts(root, TEXTS)
    return root


def run(root: Path, into: str, *files: str, docstring: str = "", check: bool = False) -> int:
    path = root.parent / "merges.toml"
    said = f"docstring = {docstring!r}\n" if docstring else ""
    path.write_text(f"[[merge]]\ninto = {into!r}\nfiles = {list(files)}\n{said}", encoding="utf-8")
    return main([str(path), *(["--check"] if check else [])], root)


def test_modules_become_one_file_whose_users_follow(root: Path) -> None:
    assert run(root, RING, BELL, RING, docstring="Bells, and how they ring.") == 0
    text = read(root, RING)
    tree = ast.parse(text)
    assert ast.get_docstring(tree) == "Bells, and how they ring."
    # What a base class and a default need comes first, though it was named last.
    assert text.index("LOUD = math.inf") < text.index("class Bell(Ring)")
    assert "# Ears hear no more.\n" in text
    assert text.count("from __future__") == 1
    assert "pagemesh" not in text
    assert not (root / BELL).exists()
    assert "from pagemesh.post.ring import Bell, Ring\n" in read(
        root, "tests/unit/post/test_bell.py"
    )
    program = f"{text}\nassert Bell().strike() == math.inf"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_new_file_takes_the_place_of_both(root: Path) -> None:
    assert run(root, "src/pagemesh/post/sound.py", BELL, RING, docstring="Sound.") == 0
    assert not (root / BELL).exists()
    assert not (root / RING).exists()
    assert "from pagemesh.post.sound import Bell, Ring\n" in read(
        root, "tests/unit/post/test_bell.py"
    )
    assert run_git(root, "status", "--porcelain").count("\n") == 3


@pytest.mark.parametrize(
    ("into", "files", "complaint"),
    [
        (RING, [BELL, RING, "src/pagemesh/post/none.py"], "none.py: no such file"),
        ("src/pagemesh/post/sound.py", [BELL, RING], "sound.py: a new file needs a docstring"),
        (DESK, [BELL, RING], "desk.py: is there, and not among the merged files"),
    ],
)
def test_what_cannot_be_done_changes_nothing(
    root: Path, capsys: pytest.CaptureFixture[str], into: str, files: list[str], complaint: str
) -> None:
    assert run(root, into, *files) == 1
    assert complaint in capsys.readouterr().err
    assert run_git(root, "status", "--porcelain") == ""


def test_check_changes_nothing(root: Path) -> None:
    assert run(root, RING, BELL, RING, check=True) == 0
    assert run_git(root, "status", "--porcelain") == ""
    assert read(root, MAIN)


def test_what_all_assign_alike_is_there_once() -> None:
    text = "log: object = logger(__name__)\n\n\ndef {0}():\n    log({0})\n"
    merged = merge({"one.py": text.format("one"), "other.py": text.format("other")}, "new", "New.")
    assert merged.count("log: object = logger(__name__)") == 1
    assert merged.index("log: object") < merged.index("def one") < merged.index("def other")


@pytest.mark.parametrize(
    ("one", "other", "complaint"),
    [
        ("A = 1\n", "A = 2\n", "A is defined in one.py and in other.py"),
        ("from a import b\n", "from c import b\n", "b is imported from a.b and c.b"),
        ("from a import b\n", "b = 1\n", "b is imported, and defined in other.py"),
        ("A = 1\nC = B\n", "B = 2\nD = A\n", "need each other"),
        ("from new import A as B\n", "A = 1\n", "A of new has another name in it"),
    ],
)
def test_names_that_would_hide_each_other_are_told(one: str, other: str, complaint: str) -> None:
    with pytest.raises(MergeError, match=complaint):
        merge({"one.py": one, "other.py": other}, "new", "New.")
