"""The policy that knows what ways there are to a prompt's KV: where it is there soon, and load."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Final

from pagemesh.router.routing.candidate import Candidate
from pagemesh.router.routing.outlook import Outlook
from pagemesh.router.routing.picker import Scored, pick_by_prompt, rendezvous
from pagemesh.router.routing.policy import Policy, Scorer
from pagemesh.router.routing.scorers import (
    load_score,
    load_scores,
    prefix_score,
    prefix_scores,
    session_scores,
    ttft_scores,
)

MAX_HOLDERS: Final = 2
"""Of the prompt's beginning that are considered whatever their load: predicting ways takes a time that
grows with the number of all workers."""


def kv_aware(weights: Mapping[str, float]) -> Policy:
    """The best sum of the scores with these weights, of the workers that are likely to be best."""
    scorers = (
        Scorer("predicted_ttft", weights["predicted_ttft"], ttft_scores),
        Scorer("decode_load", weights["decode_load"], load_scores),
        Scorer("prefix_held", weights["prefix_held"], prefix_scores),
        Scorer("session", weights["session"], session_scores),
    )
    return Policy(
        "kv_aware",
        pick_by_prompt,
        tuple(scorer for scorer in scorers if scorer.weight),
        _Likely(weights),
        uses_index=True,
    )


class _Likely:
    """Who may be best: who is by load and prefix held, who is by load alone, holders, and the session's worker."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        # The prefix stands for the time that is not predicted yet.
        self._prefix_weight = weights["predicted_ttft"] + weights["prefix_held"]
        self._load_weight = weights["decode_load"]

    def __call__(self, fit: Sequence[Candidate], outlook: Outlook) -> list[Candidate]:
        """A few of them."""
        request = outlook.request
        loads = [Scored(c, self._load_weight * load_score(c)) for c in fit]
        by_load = pick_by_prompt(loads, request)
        # By both nobody who holds nothing is better than the one who is by load.
        both = [
            Scored(c, self._prefix_weight * prefix_score(c, request) + score)
            for c, score in loads
            if c.num_coming_blocks or c is by_load
        ]
        holders = [c for c in fit if c.num_coming_blocks]
        wanted = [
            pick_by_prompt(both, request),
            by_load,
            *heapq.nlargest(MAX_HOLDERS, holders, key=lambda c: c.num_coming_blocks),
        ]
        if request.session:
            wanted.append(rendezvous(fit, request))
        return list({c.worker_id: c for c in wanted}.values())
