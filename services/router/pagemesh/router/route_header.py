"""A decision as one short line of JSON, for clients that ask where their request went, and why.

Ids of workers and numbers: nothing of the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pagemesh.router.prefix_metrics import Lookup
from pagemesh.router.routing.decision import Considered, Decision

EXPLAIN_KEY: Final = "x-pagemesh-explain"
"""Header by which a client asks."""

ROUTE_KEY: Final = "x-pagemesh-route"
"""Header of the answer."""

MAX_BYTES: Final = 2048
"""Of the line: clients and proxies bound what they take in headers, gRPC at 8 KiB for all of them."""

_MAX_CONSIDERED: Final = 3
_MAX_REFUSED: Final = 8


class Explanation(NamedTuple):
    """What a client is told of."""

    decision: Decision
    lookup: Lookup


def route_line(explanation: Explanation, num_prompts: int) -> str:
    """The line; of a request with several prompts, about the first of them.

    ASCII. What does not fit is left out, from the least important on.
    """
    for value in _shorter_and_shorter(explanation, num_prompts):
        line = json.dumps(value, separators=(",", ":"))
        if len(line) <= MAX_BYTES:
            return line
    # Names of hundreds of characters.
    return json.dumps({"policy": explanation.decision.reasons.policy}, separators=(",", ":"))


def _shorter_and_shorter(explanation: Explanation, num_prompts: int) -> Iterator[dict[str, Any]]:
    reasons, chosen = explanation.decision.reasons, chosen_object(explanation)
    if num_prompts > 1:
        chosen["prompts"] = num_prompts
    refused = list(reasons.refused.items())
    for num_considered in range(_MAX_CONSIDERED, 0, -1):
        yield {
            **chosen,
            "considered": [considered_object(each) for each in reasons.considered[:num_considered]],
            "refused": dict(refused[:_MAX_REFUSED]),
        }
    yield chosen


def chosen_object(explanation: Explanation) -> dict[str, Any]:
    """What was chosen, without what was made of the others."""
    decision = explanation.decision
    route, reasons = decision.route, decision.reasons
    plan = route.plan
    found: dict[str, Any] = {
        "policy": reasons.policy,
        "worker": route.decode.worker_id,
        "way": "local" if plan is None else plan.path.value,
    }
    if route.prefill is not None:
        found["prefill"] = route.prefill.worker_id
    if plan is not None and plan.source is not None:
        found["source"] = plan.source.worker_id
    if plan is not None and plan.predicted_seconds:
        found["predicted_seconds"] = _rounded(plan.predicted_seconds)
    return found | {
        "lookup": explanation.lookup.value,
        "available_tokens": decision.num_available_tokens,
        "captured_tokens": decision.num_captured_tokens,
        "fit_workers": reasons.num_fit,
        "refused_workers": len(reasons.refused),
    }


def considered_object(each: Considered) -> dict[str, Any]:
    """What was made of one worker."""
    found: dict[str, Any] = {
        "worker": each.worker_id,
        "held_tokens": each.num_held_tokens,
        "coming_tokens": each.num_coming_tokens,
        "requests": each.num_requests,
    }
    if each.predicted_seconds is not None:
        found["predicted_seconds"] = _rounded(each.predicted_seconds)
    if each.scores:
        found["scores"] = {name: _rounded(score) for name, score in each.scores.items()}
        found["total"] = _rounded(each.total)
    return found


def _rounded(number: float) -> float:
    return float(f"{number:.4g}")
