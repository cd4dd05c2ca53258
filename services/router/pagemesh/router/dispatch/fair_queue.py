"""A queue in which a tenant that sends much waits behind its own requests alone.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) over the tokens of requests, as the virtual token counter
does it for language models (Sheng et al., "Fairness in Serving Large Language Models", 2024): next is whoever has
got the least so far, relative to its weight. A tenant that had nothing to wait for is put on a par with the others,
so that nobody saves up. Plain Python: knows neither clock nor event loop.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from math import inf
from operator import attrgetter

from pagemesh.router.dispatch.turn import Turn

_order = attrgetter("order")


class _Flow:
    """Turns of one tenant that wait on one level."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        """First to last."""
        self.num_tokens = 0

    def add(self, turn: Turn) -> None:
        insort(self.turns, turn, key=_order)
        self.num_tokens += turn.num_tokens

    def remove(self, turn: Turn) -> bool:
        """Take it out; whether it was in."""
        index = bisect_left(self.turns, turn.order, key=_order)
        if index == len(self.turns) or self.turns[index] is not turn:
            return False
        del self.turns[index]
        self.num_tokens -= turn.num_tokens
        return True

    def num_tokens_before(self, turn: Turn) -> int:
        """Of turns that go first; one that is not in has no number yet, and comes last of its priority."""
        order = turn.order if turn.number else (turn.priority, inf)
        return sum(each.num_tokens for each in self.turns if each.order < order)


class FairQueue:
    """Turns that wait. Lower levels first, on one level fair between tenants, in order within a tenant.

    push → pop or remove. `charge` corrects what a turn was expected to take, once that is known.
    """

    def __init__(self) -> None:
        self._levels: dict[int, dict[str, _Flow]] = {}
        """By level and tenant; without empty ones."""
        self._got: dict[str, float] = {}
        """What each tenant got since the queue was empty, relative to its weight: those that waited since."""
        self._par = 0.0
        """What whoever was next had got, before."""
        self._num_turns = 0
        self._last_number = 0
        self._num_forgotten = 0
        """Turns that were pushed before the queue was empty."""

    def __len__(self) -> int:
        return self._num_turns

    def push(self, turn: Turn) -> None:
        """Have it wait."""
        self._last_number += 1
        turn.number = self._last_number
        tenant = turn.tenant
        if not any(tenant in flows for flows in self._levels.values()):
            self._got[tenant] = max(self._got.get(tenant, 0.0), self._par)
        self._levels.setdefault(turn.level, {}).setdefault(tenant, _Flow()).add(turn)
        self._num_turns += 1

    def pop(self) -> Turn:
        """Take out whose turn it is; there must be one."""
        flows = self._levels[min(self._levels)]
        # Between those that got the same, who came first.
        tenant = min(flows, key=lambda name: (self._got[name], flows[name].turns[0].number))
        turn = flows[tenant].turns[0]
        self._par = max(self._par, self._got[tenant])
        self._got[tenant] += turn.num_tokens / turn.weight
        self.remove(turn)
        return turn

    def remove(self, turn: Turn) -> bool:
        """Take a turn out; whether it was in."""
        flows = self._levels.get(turn.level, {})
        flow = flows.get(turn.tenant)
        if flow is None or not flow.remove(turn):
            return False
        if not flow.turns:
            del flows[turn.tenant]
            if not flows:
                del self._levels[turn.level]
        self._num_turns -= 1
        if not self._num_turns:
            # Nobody wants more than there is: what was got before counts no more.
            self._got.clear()
            self._par, self._num_forgotten = 0.0, self._last_number
        return True

    def charge(self, turn: Turn, num_tokens: int) -> None:
        """A turn that was popped took so many tokens more than were expected; fewer, if negative."""
        if turn.number > self._num_forgotten:
            self._got[turn.tenant] += num_tokens / turn.weight

    def turns(self) -> list[Turn]:
        """All that wait."""
        return [turn for flow in self._flows() for turn in flow.turns]

    def num_tokens_before(self, turn: Turn) -> int:
        """Tokens of turns of the same tenant that go before one that is in, or would be pushed now."""
        return sum(
            flows[turn.tenant].num_tokens_before(turn)
            for level, flows in self._levels.items()
            if level <= turn.level and turn.tenant in flows
        )

    def num_tokens_until_gone(self, tenant: str) -> float:
        """Tokens of all tenants that go out until everything has that one has waiting, as things are."""
        mine = sum(flows[tenant].num_tokens for flows in self._levels.values() if tenant in flows)
        if not mine:
            return 0.0
        weights = {turn.tenant: turn.weight for turn in self.turns()}
        total = sum(flow.num_tokens for flow in self._flows())
        return min(total, mine * sum(weights.values()) / weights[tenant])

    def _flows(self) -> Iterator[_Flow]:
        return (flow for flows in self._levels.values() for flow in flows.values())
