"""Builders for the tests of routing."""

from __future__ import annotations

from typing import Any

from pagemesh.engine.interface import BlockLayout
from pagemesh.engine.prefill_rate import PrefillRate
from pagemesh.router.routing.candidate import Candidate, Role, RouteRequest

RATE = PrefillRate(seconds_per_token=1e-3, num_tokens_per_step=512)
"""A thousand tokens in a second."""

LAYOUT = BlockLayout(block_size=16, num_layers=2, num_kv_heads=1, head_dim=2, dtype="float32")


def make_candidate(worker_id: str = "a", **changes: Any) -> Candidate:
    fields: dict[str, Any] = {
        "role": Role.DECODE,
        "address": f"{worker_id}:1",
        "model_name": "demo",
        "model_fingerprint": "f",
        "layout": LAYOUT,
        "max_model_len": 2048,
        "max_num_seqs": 64,
        "epoch": 1,
        "reachable": True,
        "num_requests": 0,
        "num_held_blocks": 0,
        "block_naming": b"n",
        "num_running": 0,
        "prefill_rate": PrefillRate(),
        "num_pending_tokens": 0,
        "own_queue_seconds": 0.0,
        "links": {},
        "own_transfers": {},
    }
    return Candidate(worker_id=worker_id, **{**fields, **changes})


def make_route_request(**changes: Any) -> RouteRequest:
    fields: dict[str, Any] = {
        "model_name": "demo",
        "num_prompt_tokens": 64,
        "num_total_tokens": 100,
        "first_block_hash": b"",
        "excluded_worker_ids": frozenset(),
        "is_prefillable": True,
    }
    return RouteRequest(**{**fields, **changes})


def make_prefill_worker(worker_id: str = "p", **changes: Any) -> Candidate:
    return make_candidate(worker_id, role=Role.PREFILL, **changes)
