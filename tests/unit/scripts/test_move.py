from __future__ import annotations

from pathlib import Path

import pytest

from scripts.move import ROOT, main
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


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make(tmp_path / "repository")


def move(root: Path, moves: dict[str, str], *arguments: str) -> int:
    path = root.parent / "map.tsv"
    rows = ["today\ttarget", *(f"{old}\t{new}" for old, new in moves.items())]
    path.write_text("\n".join(rows), encoding="utf-8")
    return main([str(path), *arguments], root)


@pytest.mark.parametrize("moves", [{}, {DESK: DESK, "docs/post.md": "docs/post.md"}])
def test_a_map_without_moves_changes_nothing(
    root: Path, capsys: pytest.CaptureFixture[str], moves: dict[str, str]
) -> None:
    assert move(root, moves) == 0
    assert run_git(root, "status", "--porcelain") == ""
    assert capsys.readouterr().out == "0 changes: 0 files move, texts of 0 change\n"


def test_the_map_of_all_files_of_this_repository_onto_themselves_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = run_git(ROOT, "ls-files").splitlines()
    path = tmp_path / "map.tsv"
    path.write_text("".join(f"{name}\t{name}\n" for name in names), encoding="utf-8")
    assert main([str(path), "--check"]) == 0
    assert capsys.readouterr().out == "0 changes: 0 files move, texts of 0 change\n"


def test_a_module_moves_to_another_package(root: Path) -> None:
    assert move(root, {DESK: "src/pagemesh/mail/window.py"}) == 0
    text = read(root, MAIN)
    assert text.startswith(
        '"""Starts `pagemesh.mail.window.Desk`, not `pagemesh.post.desk_x.Desk`."""'
    )
    assert "from pagemesh.mail import window\n" in text
    assert "from pagemesh.mail.window import Desk\n" in text
    assert "from pagemesh.post import desk_x\n" in text
    assert '"-m", "pagemesh.mail.window"]' in text
    assert "return window.Desk(), desk_x.Desk(), it" in text
    assert read(root, "src/pagemesh/mail/__init__.py") == '"""Letters and parcels."""\n'
    renamed = run_git(root, "status", "--porcelain")
    assert f"R  {DESK} -> src/pagemesh/mail/window.py\n" in renamed
    check_imports(root)


def test_a_module_moves_to_another_root(root: Path) -> None:
    moves = {DESK: "land/pagemesh/land/desk.py"}
    assert move(root, {**moves, DESK_X: DESK_X}) == 0
    assert "from pagemesh.land.desk import Desk" in read(root, MAIN)
    assert not (root / "land/pagemesh/__init__.py").exists()
    assert (root / "land/pagemesh/land/__init__.py").exists()
    check_imports(root)


def test_two_modules_change_places(root: Path) -> None:
    before = read(root, DESK), read(root, DESK_X)
    assert move(root, {DESK: DESK_X, DESK_X: DESK}) == 0
    assert (read(root, DESK_X), read(root, DESK)) == before
    text = read(root, MAIN)
    assert "`pagemesh.post.desk_x.Desk`, not `pagemesh.post.desk.Desk`" in text
    assert "from pagemesh.post.desk_x import Desk" in text
    check_imports(root)


def test_moves_may_form_a_chain(root: Path) -> None:
    assert move(root, {DESK: DESK_X, DESK_X: "src/pagemesh/post/last.py"}) == 0
    assert '"""Serves.' in read(root, DESK_X)
    assert "not `pagemesh.post.last.Desk`" in read(root, MAIN)
    check_imports(root)


@pytest.mark.parametrize(
    ("moves", "said"),
    [
        (
            {DESK: "src/pagemesh/a.py", DESK_X: "src/pagemesh/a.py"},
            f"{DESK}, {DESK_X}: merge",
        ),
        ({DESK: DESK_X}, f"{DESK_X} ← {DESK}, {DESK_X}: merge by hand first"),
        ({"src/pagemesh/none.py": "src/pagemesh/a.py"}, "src/pagemesh/none.py: no such file"),
        ({DESK: "src/pagemesh/a.py,src/pagemesh/b.py"}, "a part of a file is moved by hand"),
        ({DESK: "land/pagemesh/post/desk_x.py"}, "pagemesh.post.desk_x would be land/"),
        ({DESK: "src/pagemesh/post.py"}, "pagemesh.post would be src/pagemesh/post.py and src/"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_changes(
    root: Path, capsys: pytest.CaptureFixture[str], moves: dict[str, str], said: str
) -> None:
    assert move(root, moves) == 1
    assert said in capsys.readouterr().err
    assert run_git(root, "status", "--porcelain") == ""


def test_a_file_that_is_not_tracked_is_not_overwritten(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "notes.txt").write_text("mine", encoding="utf-8")
    assert move(root, {"docs/post.md": "notes.txt"}) == 1
    assert "notes.txt: is there, and git does not track it" in capsys.readouterr().err
    assert read(root, "notes.txt") == "mine"


def test_check_says_what_would_change_and_changes_nothing(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert move(root, {DESK: "src/pagemesh/post/window.py"}, "--check") == 0
    printed = capsys.readouterr().out
    assert f"{DESK} → src/pagemesh/post/window.py: 0 places\n" in printed
    assert f"{MAIN}: 5 places\n" in printed
    assert printed.endswith("5 changes: 1 files move, texts of 4 change\n")
    assert run_git(root, "status", "--porcelain") == ""


def test_changes_that_are_not_committed_are_refused(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "docs/post.md").write_text("`pagemesh.post.desk`\n", encoding="utf-8")
    moves = {DESK: "src/pagemesh/post/window.py"}
    assert move(root, moves) == 1
    assert "--dirty does it all the same" in capsys.readouterr().err
    assert move(root, moves, "--dirty") == 0
    assert read(root, "docs/post.md") == "`pagemesh.post.window`\n"


def test_aliases_stay_and_strings_follow(root: Path) -> None:
    assert move(root, {DESK: "src/pagemesh/post/window.py"}) == 0
    text = read(root, "tests/unit/post/test_desk.py")
    assert "import pagemesh.post.window\n" in text
    assert "from pagemesh.post import window as under_test\n" in text
    assert 'monkeypatch.setattr("pagemesh.post.window.Desk", None)' in text
    assert "assert pagemesh.post.window.Desk is under_test.Desk" in text


def test_a_module_is_imported_under_its_old_name_where_the_new_one_is_taken(root: Path) -> None:
    text = "# \f, \u2028 or so\nfrom pagemesh.post import desk\n\nwindow = 'ü', desk.Desk()\n"
    commit_texts(root, {MAIN: text})
    assert move(root, {DESK: "src/pagemesh/post/window.py"}) == 0
    assert read(root, MAIN) == (
        '# \f, \u2028 or so\nfrom pagemesh.post import window as desk\n\nwindow = "ü", desk.Desk()\n'
    )


def test_modules_may_stay_when_their_package_moves(root: Path) -> None:
    commit_texts(root, {MAIN: "from pagemesh.post import NAME, desk, desk_x\n"})
    moves = {
        "src/pagemesh/post/__init__.py": "src/pagemesh/mail/__init__.py",
        DESK: "src/pagemesh/mail/window.py",
    }
    assert move(root, moves) == 0
    assert read(root, MAIN) == (
        "from pagemesh.mail import NAME, window\nfrom pagemesh.post import desk_x\n"
    )


def test_imports_on_several_lines_and_in_programs_within_strings_follow(root: Path) -> None:
    text = (
        "def f():\n    from pagemesh.post import (\n        desk as d,  # why\n        desk_x,\n    )\n\n"
        '    return d, desk_x, "from pagemesh.post import desk; desk.Desk()"\n'
    )
    commit_texts(root, {MAIN: text})
    assert move(root, {DESK: "src/pagemesh/mail/window.py"}) == 0
    assert read(root, MAIN) == (
        "def f():\n    # why\n    from pagemesh.mail import window as d\n"
        "    from pagemesh.post import desk_x\n\n"
        '    return d, desk_x, "from pagemesh.mail import window as desk; desk.Desk()"\n'
    )


def test_what_is_not_followed_is_listed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "HERE = __file__\nA = f'pagemesh.post.{HERE}'\nB = 'post.desk'\nC = 'post/desk'\n"
        "D = f'src/pagemesh/post/{HERE}'\nE = 'desk.py'\nF = 'desk'\nG = HERE.post.desk\n"
    )
    commit_texts(root, {MAIN: text, DESK: "HERE = __file__\n"})
    assert move(root, {DESK: "land/pagemesh/mail/window.py"}, "--check") == 0
    assert capsys.readouterr().out.partition("Look at:\n")[2].splitlines()[:-1] == [
        f"  {DESK}:1: HERE = __file__: depends on its place",
        "  land/pagemesh/mail/__init__.py: is new, with the docstring of "
        "src/pagemesh/post/__init__.py: describe it",
        "  land: is a new package root, see CONTRIBUTING.md for where they are listed",
        f"  {MAIN}:2: A = f'pagemesh.post.{{HERE}}'",
        f"  {MAIN}:3: B = 'post.desk'",
        f"  {MAIN}:4: C = 'post/desk'",
        f"  {MAIN}:5: D = f'src/pagemesh/post/{{HERE}}'",
        f"  {MAIN}:6: E = 'desk.py'",
    ]


def test_lists_of_modules_in_tests_of_the_structure_follow(root: Path) -> None:
    path = "tests/hygiene/test_imports.py"
    commit_texts(root, {path: 'PURE = ("post", "post.desk", "post.desk_x", "post.desk.Desk")\n'})
    assert move(root, {DESK: "src/pagemesh/mail/window.py"}) == 0
    assert read(root, path) == 'PURE = ("post", "mail.window", "post.desk_x", "post.desk.Desk")\n'


def test_what_a_package_defines_is_no_module_of_it(root: Path) -> None:
    commit_texts(
        root,
        {
            "src/pagemesh/post/__init__.py": '"""Post."""\n\n\ndef desk():\n    pass\n',
            MAIN: "from pagemesh.post import desk\n\ndesk()\n",
        },
    )
    assert move(root, {DESK: "src/pagemesh/mail/window.py"}) == 0
    assert read(root, MAIN) == "from pagemesh.post import desk\n\ndesk()\n"


def test_tables_documents_and_links_follow(root: Path) -> None:
    moves = {
        DESK: "src/pagemesh/mail/window.py",
        "docs/post.md": "docs/guide/calls.md",
    }
    assert move(root, moves) == 0
    table = read(root, "tests/breakages.toml")
    assert 'symbol = "pagemesh.mail.window:Desk.copy"' in table
    assert 'file = "src/pagemesh/mail/window.py"' in table
    assert 'file = "src/pagemesh/post/desk_x.py"' in table
    assert read(root, "docs/guide/calls.md") == (
        "[code](../../src/pagemesh/mail/window.py), [other](../../src/pagemesh/post/desk_x.py), "
        "[guide](start.md#first), [web](https://example.com/docs/guide/calls.md)\n\n"
        "`pagemesh/mail/window.py` and `mail/window.py`, `Desk`\n"
    )
    assert read(root, "docs/guide/start.md") == "[up](calls.md)\n"
    assert "Post: guide/calls.md\n" in read(root, "mkdocs.yml")


def test_a_package_moves_with_its_folder(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "[folder](../src/pagemesh/post/), `src/pagemesh/post/*.py`, `pagemesh.post`, pagemesh.post_x, "
        "`pagemesh.post.other`, image/pagemesh/post\n\n`post/des`, `post/desk`, `desk.py`, `post`\n"
    )
    inner = {f"src/pagemesh/post/inner{name}/__init__.py": '"""In."""\n' for name in ("", "/box")}
    commit_texts(root, {"docs/post.md": text} | inner)
    (root / "src/pagemesh/post/inner/__pycache__").mkdir()
    (root / "src/pagemesh/post/inner/__pycache__/a.pyc").write_bytes(b"")
    names = ("__init__", "desk", "desk_x", "inner/__init__", "inner/box/__init__")
    moves = {f"src/pagemesh/post/{n}.py": f"src/pagemesh/net/mail/{n}.py" for n in names}
    moves["src/pagemesh/post/desk.py"] = "src/pagemesh/net/mail/window.py"
    assert move(root, moves) == 0
    assert read(root, "docs/post.md").splitlines()[0] == (
        "[folder](../src/pagemesh/net/mail/), `src/pagemesh/net/mail/*.py`, `pagemesh.net.mail`, "
        "pagemesh.post_x, `pagemesh.net.mail.other`, image/pagemesh/post"
    )
    printed = capsys.readouterr().out
    assert "docs/post.md:3: `post/des`, `post/desk`, `desk.py`, `post`\n" in printed
    assert "src/pagemesh/net/__init__.py: is new" in printed
    assert not (root / "src/pagemesh/post").exists()
    check_imports(root)
