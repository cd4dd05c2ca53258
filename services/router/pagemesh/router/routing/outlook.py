"""What is predicted for one request on each decode worker; worked out when asked for, and once."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.router.routing.candidate import Candidate, KvKind, RouteRequest
from pagemesh.router.routing.peers import Peers
from pagemesh.router.routing.preference import DISPLACEMENT, cost_of, permitted
from pagemesh.router.routing.ways import Path, Way, Ways


class Outlook:
    """Belongs to one decision."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        request: RouteRequest,
        min_tokens: int | None = None,
    ) -> None:
        """`min_tokens` is the operator's threshold for remote prefills, if there is one."""
        self.request = request
        self._min_tokens = min_tokens
        self._candidates = candidates
        self._peers_by_kind: dict[KvKind, Peers] = {}
        self._ways: dict[str, Ways] = {}
        self._best: dict[str, Way | None] = {}

    def ways(self, decode: Candidate) -> Ways:
        """All ways to the prompt's KV on this worker."""
        ways = self._ways.get(decode.worker_id)
        if ways is None:
            ways = self._ways[decode.worker_id] = Ways(decode, self._peers(decode))
        return ways

    def best_way(self, decode: Candidate) -> Way | None:
        """The one of the least cost that the request may take; None where none was predicted."""
        if decode.worker_id not in self._best:
            if self.request.is_prefillable:
                ways = permitted(self.ways(decode), self._min_tokens)
            else:
                ways = [w for w in self.ways(decode).predicted if w.path is Path.LOCAL]
            best = min(ways, key=lambda way: cost_of(way, decode), default=None)
            self._best[decode.worker_id] = best
        return self._best[decode.worker_id]

    def cost(self, decode: Candidate) -> float | None:
        """Seconds of the best way, and of what its KV displaces there; None as long as nothing was measured.

        See `cost_of` and `DISPLACEMENT`.
        """
        best = self.best_way(decode)
        if best is None:
            return None
        return cost_of(best, decode) + DISPLACEMENT * self.ways(decode).stored_seconds

    def queue_seconds(self, decode: Candidate) -> float | None:
        """Until the decode worker could begin with what it has to compute itself; None as `cost`."""
        best = self.best_way(decode)
        if best is None:
            return None
        computes = best.path in (Path.LOCAL, Path.PULL)
        return self.ways(decode).peers.site(decode).queue_seconds if computes else 0.0

    def seconds(self, decode: Candidate) -> float | None:
        """Until the decode worker could go on, by the best way; None where nobody has asked for it."""
        best = self._best.get(decode.worker_id)
        return None if best is None else best.forecast.seconds

    def _peers(self, decode: Candidate) -> Peers:
        kind = decode.facts.kv_kind
        peers = self._peers_by_kind.get(kind)
        if peers is None:
            peers = self._peers_by_kind[kind] = Peers(kind, self._candidates, self.request)
        return peers
