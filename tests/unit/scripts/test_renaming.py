from __future__ import annotations

from pathlib import Path

import pytest

from scripts.move import main
from tests.unit.scripts.small_repository import (
    DESK,
    DESK_X,
    MAIN,
    check_imports,
    commit_texts,
    make,
    read,
    run_git,
)

RENAME = "pagemesh.post.desk:Desk=Window"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make(tmp_path / "repository")


def test_a_class_is_renamed_where_it_is_defined_and_where_it_is_imported(root: Path) -> None:
    assert main(["--rename", RENAME], root) == 0
    text = read(root, DESK)
    assert text.startswith('"""Serves. See `Window.start`."""')
    assert "class Window:\n" in text
    assert 'def copy(self) -> "Window":\n' in text
    text = read(root, MAIN)
    assert "from pagemesh.post.desk import Window\n" in text
    assert "def run(it: Window) -> object:\n" in text
    assert "return desk.Window(), desk_x.Desk(), it\n" in text
    assert "`pagemesh.post.desk.Window`, not `pagemesh.post.desk_x.Desk`" in text
    assert "class Desk" in read(root, DESK_X)
    text = read(root, "tests/unit/post/test_desk.py")
    assert 'setattr("pagemesh.post.desk.Window", None)' in text
    assert 'setattr(under_test, "Window", None)' in text
    assert "pagemesh.post.desk.Window is under_test.Window" in text
    check_imports(root)


def test_tables_that_name_its_file_follow(root: Path) -> None:
    assert main(["--rename", RENAME], root) == 0
    table = read(root, "tests/breakages.toml")
    assert 'symbol = "pagemesh.post.desk:Window.copy"' in table
    assert table.count('find = "class Window:"') == 1
    assert table.count('find = "class Desk:"') == 1


def test_documents_follow_when_no_other_definition_has_the_name(root: Path) -> None:
    assert main(["--rename", RENAME], root) == 0
    assert "`post/desk.py`, `Desk`\n" in read(root, "docs/post.md")
    assert main(["--rename", "pagemesh.post.desk_x:Desk=Other", "--dirty"], root) == 0
    assert "`post/desk.py`, `Other`\n" in read(root, "docs/post.md")


def test_names_of_other_scopes_stay(root: Path) -> None:
    commit_texts(
        root,
        {
            MAIN: (
                "from pagemesh.post.desk import Desk\n\n\n"
                "def f(Desk):\n    return Desk\n\n\n"
                "class A:\n    Desk = 1\n\n    def g(self):\n        return Desk, self.Desk\n\n\n"
                "def h():\n    return [Desk for _ in 'a'], f(Desk=1)\n"
            )
        },
    )
    assert main(["--rename", RENAME], root) == 0
    assert read(root, MAIN) == (
        "from pagemesh.post.desk import Window\n\n\n"
        "def f(Desk):\n    return Desk\n\n\n"
        "class A:\n    Desk = 1\n\n    def g(self):\n        return Window, self.Desk\n\n\n"
        'def h():\n    return [Window for _ in "a"], f(Desk=1)\n'
    )


def test_modules_that_pass_a_name_on_pass_the_new_one_on(root: Path) -> None:
    commit_texts(
        root,
        {
            "src/pagemesh/post/__init__.py": (
                '"""Calls."""\n\nfrom pagemesh.post.desk import Desk\n\n__all__ = ["Desk"]\n'
            )
        },
    )
    commit_texts(
        root,
        {
            MAIN: (
                "from pagemesh.post import Desk, desk, desk_x\n"
                "from pagemesh.post.desk_x import Desk as Other\n\n\n"
                "def run(it):\n    return Desk(), desk.Desk(), desk_x.Desk(), Other()\n"
            )
        },
    )
    assert main(["--rename", RENAME], root) == 0
    assert read(root, "src/pagemesh/post/__init__.py") == (
        '"""Calls."""\n\nfrom pagemesh.post.desk import Window\n\n__all__ = ["Window"]\n'
    )
    text = read(root, MAIN)
    assert "from pagemesh.post import Window, desk, desk_x\n" in text
    assert "from pagemesh.post.desk_x import Desk as Other\n" in text
    assert "return Window(), desk.Window(), desk_x.Desk(), Other()\n" in text
    check_imports(root)


@pytest.mark.parametrize(
    ("rename", "said"),
    [
        ("pagemesh.post.desk:Gone=Window", "pagemesh.post.desk:Gone: no such definition"),
        ("pagemesh.post.desk=Window", "a renaming is module:Old=New"),
        ("pagemesh.post.desk:Desk=run", f"Desk=run: the name is taken in {MAIN}"),
    ],
)
def test_a_renaming_that_cannot_be_done_is_refused_and_nothing_changes(
    root: Path, capsys: pytest.CaptureFixture[str], rename: str, said: str
) -> None:
    assert main(["--rename", rename], root) == 1
    assert said in capsys.readouterr().err
    assert run_git(root, "status", "--porcelain") == ""


def test_a_renaming_comes_before_the_moves(root: Path) -> None:
    path = root.parent / "map.tsv"
    path.write_text(f"{DESK}\tsrc/pagemesh/post/window.py\n", encoding="utf-8")
    assert main([str(path), "--rename", RENAME], root) == 0
    assert "from pagemesh.post.window import Window\n" in read(root, MAIN)
    check_imports(root)
