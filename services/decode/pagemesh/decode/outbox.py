"""What a session has to tell its router: at most one output per request, however slowly it is read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pagemesh.v1 import decode_pb2


class OutputBuffer:
    """Outputs not yet sent. Those of one request are merged, so that it cannot outgrow the requests."""

    def __init__(self) -> None:
        self._outputs: dict[int, decode_pb2.RequestOutput] = {}
        self._news = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether everything was taken."""
        return not self._outputs

    def add(self, output: decode_pb2.RequestOutput) -> None:
        """Have an output sent."""
        pending = self._outputs.get(output.handle)
        if pending is None:
            self._outputs[output.handle] = output
        else:
            pending.MergeFrom(output)  # appends the tokens, sets what was not set
        self._news.set()

    def wake(self) -> None:
        """Have `take` return although there may be nothing."""
        self._news.set()

    async def take(self) -> Sequence[decode_pb2.RequestOutput]:
        """Wait for outputs and take all there are, in the order in which their requests first had any.

        Needs no deadline: a session without traffic is ended by its router or by keepalive.
        """
        await self._news.wait()
        self._news.clear()
        outputs = list(self._outputs.values())
        self._outputs.clear()
        return outputs
