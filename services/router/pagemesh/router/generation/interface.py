"""The generation path as services see it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager
from typing import Protocol

from pagemesh.router.generation.request import ChoiceDelta, GenerationRequest, Idle, Usage
from pagemesh.router.route_header import Explanation


class RunningGeneration(Protocol):
    """One request in progress."""

    def deltas(self) -> AsyncGenerator[ChoiceDelta | Idle, None]:
        """What becomes known, in order; ends after the last choice's last delta. To be iterated once.

        Raises a PagemeshError when the request as a whole fails.
        """
        ...

    def usage(self) -> Usage:
        """Token counts so far."""
        ...

    @property
    def explanation(self) -> Explanation | None:
        """Where the first prompt goes, and why; None before that is decided."""
        ...

    @property
    def num_prompts(self) -> int:
        """Of the request."""
        ...


class TextGenerator(Protocol):
    """Runs requests for one model."""

    def start(self, request: GenerationRequest) -> AbstractContextManager[RunningGeneration]:
        """A generation whose workers are told to stop when the block is left, whatever happened."""
        ...
