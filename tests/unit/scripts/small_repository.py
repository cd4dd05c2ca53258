"""A git repository of a few files, in several portions of a namespace, that a test moves about."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

DESK = "src/pagemesh/post/desk.py"
DESK_X = "src/pagemesh/post/desk_x.py"
MAIN = "services/town/pagemesh/town/main.py"
FILES = {
    "src/pagemesh/post/__init__.py": '"""Letters and parcels.\n\nAnd more.\n"""\n',
    DESK: (
        '"""Serves. See `Desk.start`."""\n\n\n'
        'class Desk:\n    """One."""\n\n    def copy(self) -> "Desk":\n        return self\n'
    ),
    DESK_X: '"""Another module."""\n\n\nclass Desk:\n    """Two."""\n',
    "services/town/pagemesh/town/__init__.py": '"""Streets."""\n',
    MAIN: (
        '"""Starts `pagemesh.post.desk.Desk`, not `pagemesh.post.desk_x.Desk`."""\n\n'
        "from pagemesh.post import desk, desk_x\n"
        "from pagemesh.post.desk import Desk\n\n"
        'PROGRAM = ["python", "-m", "pagemesh.post.desk"]\n\n\n'
        "def run(it: Desk) -> object:\n"
        "    return desk.Desk(), desk_x.Desk(), it\n"
    ),
    "tests/unit/post/test_desk.py": (
        "import pagemesh.post.desk\nfrom pagemesh.post import desk as under_test\n\n\n"
        "def test_it(monkeypatch):\n"
        '    monkeypatch.setattr("pagemesh.post.desk.Desk", None)\n'
        '    monkeypatch.setattr(under_test, "Desk", None)\n'
        "    assert pagemesh.post.desk.Desk is under_test.Desk\n"
    ),
    "tests/breakages.toml": (
        '[[breakage]]\nsymbol = "pagemesh.post.desk:Desk.copy"\n'
        'file = "src/pagemesh/post/desk.py"\nfind = "class Desk:"\n\n'
        '[[breakage]]\nfile = "src/pagemesh/post/desk_x.py"\nfind = "class Desk:"\n'
    ),
    "docs/post.md": (
        "[code](../src/pagemesh/post/desk.py), [other](../src/pagemesh/post/desk_x.py), "
        "[guide](guide/start.md#first), [web](https://example.com/docs/post.md)\n\n"
        "`pagemesh/post/desk.py` and `post/desk.py`, `Desk`\n"
    ),
    "docs/guide/start.md": "[up](../post.md)\n",
    "mkdocs.yml": "nav:\n  - Post: post.md\n  - Start: guide/start.md\n",
}


def make(root: Path) -> Path:
    """Write and commit the files."""
    root.mkdir()
    run_git(root, "init", "-q")
    commit_texts(root, FILES)
    return root


def commit_texts(root: Path, texts: Mapping[str, str]) -> None:
    """Write files and commit them."""
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    run_git(root, "add", "-A")
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    run_git(root, *author, "commit", "-q", "-m", "Start")


def run_git(root: Path, *arguments: str) -> str:
    """What git prints, without the settings of this machine."""
    return subprocess.run(
        ["git", *arguments], cwd=root, check=True, capture_output=True, text=True, timeout=60
    ).stdout


def read(root: Path, path: str) -> str:
    """The text of a file."""
    return (root / path).read_text(encoding="utf-8")


def check_imports(root: Path) -> None:
    """What the main module does still works, with a fresh interpreter."""
    program = "from pagemesh.town.main import run; print([type(x).__module__ for x in run(None)])"
    portions = ":".join(str(root / name) for name in ("src", "services/town", "land"))
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=root, env={"PYTHONPATH": portions}, timeout=60,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
