"""What happens to whole processes during the soak: killed, frozen, cut off."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from tests.soak.stage import Stage

KINDS = ("kill prefill", "kill decode", "freeze prefill", "freeze decode", "partition")


class Disasters:
    """Does one at a time, with the traffic going on."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage = stage
        self._draws = random.Random(seed)
        self._num_done = 0
        self.counts: Counter[str] = Counter()

    async def next(self) -> None:
        """One disaster and its end: everybody serves again."""
        kind = KINDS[self._num_done % len(KINDS)]
        self._num_done += 1
        self.counts[kind] += 1
        number = self._draws.randrange(len(self._stage.senders))
        sender, link = self._stage.senders[number], self._stage.links[number]
        match kind:
            case "kill prefill":
                sender.kill()
                await asyncio.to_thread(sender.start().wait_until_serving)
            case "kill decode":
                self._stage.decode.kill()
                await self._stage.close_session()
                await asyncio.to_thread(self._stage.decode.start().wait_until_serving)
                await self._stage.open_session()
            case "freeze prefill":
                sender.freeze()
                await asyncio.sleep(self._draws.uniform(0.5, 3.0))
                sender.thaw()
            case "freeze decode":
                # Longer than a router waits: the session is gone, and everything with it.
                self._stage.decode.freeze()
                await asyncio.sleep(3.0)
                self._stage.decode.thaw()
                await self._stage.open_session()
            case "partition":
                link.swallow(True, "grpc")
                await asyncio.sleep(self._draws.uniform(0.5, 3.0))
                link.swallow(False, "grpc")
