"""What the processes of a test said last, for who has to find out why it failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, runtime_checkable

RECENT_LINES: Final = 20


@runtime_checkable
class HasLogs(Protocol):
    """A fixture behind which are processes with logs."""

    def logged(self) -> Mapping[str, str]:
        """Everything they said so far, by name."""


def recent_logs(scene: HasLogs) -> str:
    """The last lines of each of its logs."""
    return "\n".join(
        line
        for name, text in scene.logged().items()
        for line in (f"--- {name}", *text.splitlines()[-RECENT_LINES:])
    )
