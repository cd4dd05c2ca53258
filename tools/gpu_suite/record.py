"""What a slice has done: a file in its folder, written after each command, by which it is taken up again."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]

FILE: Final = "slice.json"

DONE: Final = "done"
FAILED: Final = "failed"
STOPPED: Final = "out of time"

_SOURCES: Final = (
    "src",
    "services",
    "gateway",
    "kernels",
    "benchmarks",
    "tests",
    "models",
    "tools",
)
_ENDINGS: Final = (".py", ".ini")


class Ended(NamedTuple):
    """How a command ended."""

    how: str
    code: int | None
    """Its exit code; none when it was stopped."""
    seconds: float
    said: str
    """Its last line."""


class Record:
    """Of one slice, for one state of the tree: what was done with another one does not count."""

    def __init__(self, path: Path, tree: str) -> None:
        self._path = path
        self._tree = tree
        self._commands: dict[str, Any] = {}
        # Commands that run side by side end when they like.
        self._lock = threading.Lock()
        content = read(path)
        if content.get("tree") == tree:
            self._commands = content["commands"]

    def has_done(self, name: str) -> bool:
        """Whether a command needs no second run: one that failed or ran out of time has one."""
        return bool(self._commands.get(name, {}).get("how") == DONE)

    def forget(self, names: Iterable[str]) -> None:
        """Commands that are about to run."""
        with self._lock:
            for name in names:
                self._commands.pop(name, None)
            self._write()

    def note(self, name: str, ended: Ended) -> None:
        """Write down how a command ended."""
        with self._lock:
            self._commands[name] = ended._asdict() | {"seconds": round(ended.seconds, 1)}
            self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        content = {"tree": self._tree, "commands": self._commands}
        # Whole at any time: the machine may go away while it is written.
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        draft.replace(self._path)


def read(path: Path) -> dict[str, Any]:
    """What a record's file has; empty without one, or with one that somebody cut off."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and "commands" in content else {}


def tree_digest(root: Path = ROOT) -> str:
    """Of all code of the tree: a copy on a rented machine has no repository that could name a commit."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in _ENDINGS and path.is_file():
                content = path.read_bytes()
                name = path.relative_to(root).as_posix()
                digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.hexdigest()[:12]
