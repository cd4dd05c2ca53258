"""How the workers of a host divide its cores: a function of what each has, wants and holds. Plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class CoreClaim(NamedTuple):
    """One worker's place among those that share cores."""

    share: int
    """Cores that are its own, whenever it wants them; at least one."""

    wanted: int
    """Threads that its present step can use; 0 while it computes nothing."""

    held: int
    """Cores that it computes on; those that it held before, until it has adapted."""


class CoreTotals(NamedTuple):
    """What sharing cores brought and cost one worker, since it was started."""

    borrowed_seconds: float = 0.0
    """Core-seconds that it had beyond its share."""

    wait_seconds: float = 0.0
    """Seconds that its steps waited for cores of its share."""


def entitlements(num_cores: int, claims: Sequence[CoreClaim]) -> list[int]:
    """Cores of each worker once all have adapted: what it wants of its share, and of the
    cores that are left an equal part.

    Everybody who sees the same claims comes to the same division. Its sum exceeds `num_cores` only where the
    shares alone do.
    """
    entitled = [min(claim.wanted, claim.share) for claim in claims]
    num_spare = num_cores - sum(entitled)
    while num_spare > 0:
        lacking = [i for i, claim in enumerate(claims) if entitled[i] < claim.wanted]
        if not lacking:
            break
        part = max(1, num_spare // len(lacking))
        for i in lacking[:num_spare]:
            more = min(part, claims[i].wanted - entitled[i])
            entitled[i] += more
            num_spare -= more
    return entitled


def grantable(num_cores: int, claims: Sequence[CoreClaim], index: int) -> int:
    """Cores that one worker may hold from now on: of those that it is entitled to, what no other one holds.

    If each worker in turn holds no more than that, all together never hold more than `num_cores`, or than the
    sum of the shares where there are more workers than cores.
    """
    claim = claims[index]
    entitled = entitlements(num_cores, claims)[index]
    num_held = sum(other.held for other in claims) - claim.held
    free = max(0, num_cores - num_held)
    own = max(0, max(num_cores, sum(each.share for each in claims)) - num_held)
    return max(min(entitled, free), min(claim.wanted, claim.share, own))
