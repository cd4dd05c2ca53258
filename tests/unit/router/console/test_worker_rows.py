"""A worker as the page shows it."""

from __future__ import annotations

from typing import Any

import pytest

from pagemesh.membership.roster import WorkerState
from pagemesh.router.console.rows import worker_row
from pagemesh.router.parity import Degraded, Difference
from pagemesh.router.routing.candidate import Role
from pagemesh.router.session import WorkerSession
from pagemesh.router.session_requests import SessionRequests
from pagemesh.v1 import types_pb2

DECODE, PREFILL = types_pb2.WORKER_ROLE_DECODE, types_pb2.WORKER_ROLE_PREFILL


def make_worker(
    role: types_pb2.WorkerRole.ValueType = DECODE,
    *,
    live: bool = True,
    reported_at: float | None = 98.5,
    **load: Any,
) -> WorkerState:
    info = types_pb2.WorkerInfo(
        worker_id="w", role=role, address="h:1", model_name="m", block_count=100, max_num_seqs=8,
        max_model_len=512, kv_layout=types_pb2.KvLayout(block_size=16),
    )  # fmt: skip
    return WorkerState(info, types_pb2.WorkerLoad(**load), live, reported_at)


async def session_of(worker: WorkerState, *, is_open: bool, is_draining: bool) -> WorkerSession:
    session = WorkerSession(worker.info)
    session._requests = SessionRequests() if is_open else None
    session._draining = is_draining
    return session


def test_a_worker_is_shown_as_it_reported() -> None:
    rate = types_pb2.PrefillRate(
        seconds_per_token=0.001, seconds_per_step=0.012, step_token_count=4
    )
    worker = make_worker(
        PREFILL, running_request_count=2, waiting_request_count=3, free_block_count=60,
        pending_prefill_token_count=70, prefill_rate=rate,
    )  # fmt: skip
    assert worker_row(worker, None, None, 100.0) == {
        "id": "w", "role": "prefill", "model": "m", "address": "h:1", "arithmetic": "", "state": "ready",
        "degraded": None, "running": 2, "waiting": 3, "max_num_seqs": 8,
        "pending_prefill_tokens": 70, "used_blocks": 40, "blocks": 100, "block_size": 16,
        "max_model_len": 512, "prefill_tokens_per_second": 250.0, "reported_seconds_ago": 1.5,
    }  # fmt: skip


def test_what_was_never_reported_is_not_made_up() -> None:
    row = worker_row(make_worker(PREFILL, reported_at=None), None, None, 100.0)
    unknown = {"used_blocks": 0, "prefill_tokens_per_second": None, "reported_seconds_ago": None}
    assert row == row | unknown


@pytest.mark.parametrize(
    ("is_open", "is_draining", "live", "state"),
    [
        (True, False, True, "ready"),
        (True, True, True, "draining"),
        (False, False, True, "unreachable"),
        (True, False, False, "unconfirmed"),
    ],
)
async def test_a_decode_worker_is_as_its_session_is(
    is_open: bool, is_draining: bool, live: bool, state: str
) -> None:
    worker = make_worker(live=live)
    session = await session_of(worker, is_open=is_open, is_draining=is_draining)
    assert worker_row(worker, session, None, 100.0)["state"] == state
    assert worker_row(worker, None, None, 100.0)["state"] == "unreachable"


def test_a_degraded_worker_says_why_and_what_to_do() -> None:
    degraded = Degraded("w", "demo", Role.PREFILL, Difference.TOKENIZER)
    shown = worker_row(make_worker(PREFILL), None, degraded, 100.0)["degraded"]
    assert shown["reason"] == "tokenizer"
    assert "tokenizer.json" in shown["advice"]
