"""A listener of an engine that keeps everything and lets tests wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pagemesh.core.engine import StepOutput
from pagemesh.core.kv import KvGrant
from pagemesh.core.request import RequestOutput

DEADLINE = 10.0
"""Seconds after which a wait has failed."""


class Inbox:
    """A listener that keeps everything and lets tests wait for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.steps: list[StepOutput] = []
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, RequestOutput] = {}
        self.grants: dict[str, KvGrant] = {}

    def __call__(self, output: StepOutput) -> None:
        with self._changed:
            self.steps.append(output)
            self.grants.update({grant.request_id: grant for grant in output.grants})
            for item in output.outputs:
                self.tokens.setdefault(item.request_id, []).extend(item.token_ids)
                if item.finish_reason is not None:
                    assert item.request_id not in self.ends, "ended twice"
                    self.ends[item.request_id] = item
            self._changed.notify_all()

    def wait_for_end(self, *request_ids: str) -> None:
        self._wait(lambda: all(request_id in self.ends for request_id in request_ids))

    def wait_for_grant(self, request_id: str) -> KvGrant:
        self._wait(lambda: request_id in self.grants)
        return self.grants[request_id]

    def wait_for_tokens(self, request_id: str, num_tokens: int) -> None:
        self._wait(lambda: len(self.tokens.get(request_id, ())) >= num_tokens)

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE), "nothing came in time"
