"""Brings what the engine thread makes known to the call that waits for it, and shows how far the call is."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition
from types import TracebackType
from typing import Final, Self

from pagemesh.core.engine import StepOutput
from pagemesh.core.request import RequestOutput
from pagemesh.errors import PagemeshError

CHECK_INTERVAL: Final = 0.1
"""Seconds after which someone who waits takes what there is, or asks whether the engine is still there."""


class Inbox:
    """Outputs of one call's requests, in the order in which the engine made them known.

    Who waits is woken when a request has ended, and otherwise now and then: a thread that runs after
    every step takes time from those that compute the next one. An eager inbox wakes at once.
    """

    def __init__(
        self, check_engine: Callable[[], None], check_interval: float, *, eager: bool
    ) -> None:
        self._check_engine = check_engine
        self._check_interval = check_interval
        self._eager = eager
        self._outputs: list[RequestOutput] = []
        self._is_due = False
        self._changed = Condition()

    def put(self, outputs: Sequence[RequestOutput]) -> None:
        """Add a step's outputs; any thread."""
        is_due = self._eager or any(output.finish_reason is not None for output in outputs)
        with self._changed:
            self._outputs += outputs
            if is_due:
                self._is_due = True
                self._changed.notify()

    def get(self) -> list[RequestOutput]:
        """Wait for the next outputs, for as long as the engine can give some.

        Raises what `check_engine` raises when it cannot any more.
        """
        while True:
            if outputs := self._take(self._check_interval):
                return outputs
            try:
                self._check_engine()
            except PagemeshError:
                # What it said before it ended counts.
                if outputs := self._take(0.0):
                    return outputs
                raise

    def _take(self, seconds: float) -> list[RequestOutput]:
        with self._changed:
            self._changed.wait_for(lambda: self._is_due, seconds)
            outputs, self._outputs, self._is_due = self._outputs, [], False
        return outputs


class Deliveries:
    """The engine's listener. Calls of several threads each have an inbox of their own."""

    def __init__(self, check_interval: float = CHECK_INTERVAL) -> None:
        self._check_interval = check_interval
        self._inboxes: dict[str, Inbox] = {}

    def __call__(self, step: StepOutput) -> None:
        """Hand out one step's outputs; those of requests that nobody waits for are dropped."""
        by_inbox: dict[Inbox, list[RequestOutput]] = defaultdict(list)
        for output in step.outputs:
            inbox = self._inboxes.get(output.request_id)
            if inbox is not None:
                by_inbox[inbox].append(output)
        for inbox, outputs in by_inbox.items():
            inbox.put(outputs)

    @contextmanager
    def inbox(
        self, request_ids: Iterable[str], check_engine: Callable[[], None], *, eager: bool = False
    ) -> Iterator[Inbox]:
        """Collect the outputs of some requests while the block runs; ids are used once.

        `check_engine` raises a PagemeshError when nothing more can come. An eager inbox gives every
        output at once, for those who may want to end a request.
        """
        inbox = Inbox(check_engine, self._check_interval, eager=eager)
        own = dict.fromkeys(request_ids, inbox)
        self._inboxes.update(own)
        try:
            yield inbox
        finally:
            for request_id in own:
                del self._inboxes[request_id]


_INTERVAL_S = 0.1


class Progress:
    """A bar over the prompts of a call, with the rates of tokens read and generated; a context."""

    def __init__(self, num_prompts: int, *, shown: bool) -> None:
        # Here, because only whoever looks at a bar needs it.
        from tqdm.auto import tqdm

        self._bar = tqdm(
            total=num_prompts,
            desc="Processed prompts",
            unit="prompt",
            dynamic_ncols=True,
            disable=not shown,
        )
        self._started = self._written = time.perf_counter()
        self._num_read = 0
        self._num_generated = 0

    def add(self, num_generated_tokens: int, num_prompt_tokens: int | None) -> None:
        """Count tokens of an answer and, once all of a prompt's answers have ended, the prompt's."""
        self._num_generated += num_generated_tokens
        if num_prompt_tokens is not None:
            self._num_read += num_prompt_tokens
            self._bar.update()
        now = time.perf_counter()
        if now - self._written >= _INTERVAL_S:
            self._written = now
            self._show(now)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._show(time.perf_counter())
        self._bar.close()

    def _show(self, now: float) -> None:
        seconds = max(now - self._started, 1e-9)
        self._bar.set_postfix_str(
            f"tokens/s in {self._num_read / seconds:.0f}, out {self._num_generated / seconds:.0f}"
        )
