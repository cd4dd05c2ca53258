"""What checks come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class Status(IntEnum):
    """How bad it is, from the best to the worst."""

    SKIPPED = 0
    """There was nothing to look at."""
    OK = 1
    NOTE = 2
    """Good to know; somebody may have wanted it so."""
    WARNING = 3
    """It works, but not as well as it could, or not for long."""
    WRONG = 4
    """Something does not work."""

    @property
    def word(self) -> str:
        """As it is printed."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    status: Status

    subject: str
    """Whom it is about: a worker's id, "router", "gateway" …"""

    what: str
    """What is so, and what it leads to. A sentence."""

    advice: str
    """What to do. A sentence."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one check came to."""

    check: str

    summary: str
    """What was looked at, in one line."""

    findings: Sequence[Finding] = ()

    is_skipped: bool = False
    """Whether there was nothing to look at."""

    @property
    def status(self) -> Status:
        """The worst of the findings."""
        least = Status.SKIPPED if self.is_skipped else Status.OK
        return max((finding.status for finding in self.findings), default=least)
