"""How far a measurement is: a bar in a terminal, and lines where there is none."""

from __future__ import annotations

import asyncio
import sys
import time
from types import TracebackType
from typing import Final, Self

from tqdm import tqdm

from pagemesh.bench.record import Record

_INTERVAL_S: Final = 10.0


class Progress:
    """Of the requests of one rate, on stderr; a context."""

    def __init__(self, num_requests: int, title: str, *, is_shown: bool) -> None:
        self._num_requests = num_requests
        self._title = title
        self._is_shown = is_shown
        self._num_ended = self._num_failed = self._num_sent = self._num_tokens = 0
        self._began_at = time.perf_counter()
        is_terminal = sys.stderr.isatty()
        self._writes_lines = is_shown and not is_terminal
        self._bar = tqdm(
            total=num_requests,
            desc=title,
            unit="req",
            dynamic_ncols=True,
            disable=not is_shown or not is_terminal,
        )
        self._lines: asyncio.Task[None] | None = None

    def sent(self) -> None:
        """A request more is under way."""
        self._num_sent += 1

    def ended(self, record: Record) -> None:
        """One of them has ended."""
        self._num_ended += 1
        self._num_failed += bool(record.error)
        self._num_tokens += record.num_output_tokens or len(record.piece_times)
        self._bar.set_postfix_str(self._rates(), refresh=False)
        self._bar.update()

    async def __aenter__(self) -> Self:
        if self._writes_lines:
            self._lines = asyncio.create_task(self._write_lines())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()
        if self._lines is not None:
            self._lines.cancel()
            self._write_line()

    async def _write_lines(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            self._write_line()

    def _write_line(self) -> None:
        ended = f"{self._num_ended} of {self._num_requests} requests ended"
        print(f"{self._title}: {ended}, {self._rates()}", file=sys.stderr, flush=True)

    def _rates(self) -> str:
        seconds = max(time.perf_counter() - self._began_at, 1e-9)
        failed = f", {self._num_failed} failed" if self._num_failed else ""
        under_way = self._num_sent - self._num_ended
        return f"{under_way} under way{failed}, {self._num_tokens / seconds:.0f} tokens/s"
