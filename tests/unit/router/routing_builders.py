"""Builders for the tests of routing."""

from __future__ import annotations

import dataclasses
from typing import Any

from pagemesh.core.kv import KvLayout
from pagemesh.core.load import PrefillRate
from pagemesh.router.routing.candidate import (
    Candidate,
    Naming,
    OwnLoad,
    Role,
    RouteRequest,
    WorkerFacts,
)

RATE = PrefillRate(seconds_per_token=1e-3, num_tokens_per_step=512)
"""A thousand tokens in a second."""

LAYOUT = KvLayout.uniform(block_size=16, num_layers=2, num_kv_heads=1, head_dim=2, dtype="float32")
NAMING = Naming("f", 16, "float32")
"""Of the workers that `make_facts` makes."""

_FACTS = {field.name for field in dataclasses.fields(WorkerFacts)}


def make_facts(worker_id: str = "a", **changes: Any) -> WorkerFacts:
    fields: dict[str, Any] = {
        "role": Role.DECODE,
        "address": f"{worker_id}:1",
        "epoch": 1,
        "model_name": "demo",
        "model_fingerprint": "f",
        "layout": LAYOUT,
        "block_naming": b"n",
        "max_model_len": 2048,
        "max_num_seqs": 64,
        "num_blocks": 0,
    }
    return WorkerFacts(worker_id=worker_id, **{**fields, **changes})


def make_candidate(worker_id: str = "a", **changes: Any) -> Candidate:
    """Takes the fields of `Candidate`, `WorkerFacts` and `OwnLoad`."""
    facts = {name: changes.pop(name) for name in _FACTS & changes.keys()}
    own = {name: changes.pop(name) for name in OwnLoad._fields if name in changes}
    fields: dict[str, Any] = {
        "reachable": True,
        "is_draining": False,
        "num_held_blocks": 0,
        "num_coming_blocks": changes.get("num_held_blocks", 0),
        "own": OwnLoad(**own),
    }
    return Candidate(facts=make_facts(worker_id, **facts), **{**fields, **changes})


def changed(candidate: Candidate, **changes: Any) -> Candidate:
    """The same worker with other fields, wherever they are."""
    facts = {name: changes.pop(name) for name in _FACTS & changes.keys()}
    own = {name: changes.pop(name) for name in OwnLoad._fields if name in changes}
    if "num_held_blocks" in changes:
        changes.setdefault("num_coming_blocks", changes["num_held_blocks"])
    return candidate._replace(
        facts=dataclasses.replace(candidate.facts, **facts),
        own=candidate.own._replace(**own),
        **changes,
    )


def make_route_request(first_block: bytes = b"", **changes: Any) -> RouteRequest:
    """A prompt that should go where others with this name of their first block go, if any."""
    fields: dict[str, Any] = {
        "model_name": "demo",
        "num_prompt_tokens": 64,
        "num_total_tokens": 100,
        "block_names": {NAMING: [first_block]} if first_block else {},
        "affinity": {NAMING: first_block} if first_block else {},
        "excluded_worker_ids": frozenset(),
        "is_prefillable": True,
    }
    return RouteRequest(**{**fields, **changes})


def make_prefill_worker(worker_id: str = "p", **changes: Any) -> Candidate:
    return make_candidate(worker_id, role=Role.PREFILL, **changes)
