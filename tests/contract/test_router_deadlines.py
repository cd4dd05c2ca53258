"""Deadlines: what is refused early, what ends in the queue or on a worker, and how clients say theirs."""

from __future__ import annotations

import asyncio
import time

import pytest

from pagemesh.core.load import PrefillRate
from pagemesh.engine.runner import LayerProgress
from pagemesh.scheduler.batch import Batch, StepResult
from tests.contract.full_mesh import NUM_TAKEN, await_queue, num_queued, occupied, one_seat
from tests.contract.http_answers import http_body, pairs, read
from tests.contract.router_harness import Mesh, eventually, running_mesh
from tests.contract.tenant_keys import error_of, refusals

PROMPT = list(range(10, 26))
SHORT = {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True}


def is_idle(mesh: Mesh) -> bool:
    return all(w.engine.num_free_blocks == w.engine.info.num_blocks for w in mesh.workers.values())


async def test_a_deadline_ends_the_wait() -> None:
    async with one_seat() as mesh, occupied(mesh, NUM_TAKEN):
        began = time.monotonic()
        late = await mesh.completions(SHORT, **{"x-request-timeout": "0.3"})
        assert 0.3 <= time.monotonic() - began < 1
        assert (late.status, error_of(late)["code"]) == (504, "timeout")
        assert num_queued(mesh) == 0
        assert refusals(mesh, "deadline") == 1


async def test_a_stream_that_waits_is_kept_alive_and_ends_with_an_error() -> None:
    async with one_seat() as mesh, occupied(mesh, NUM_TAKEN):
        body = http_body({**SHORT, "stream": True})
        call = mesh.openai.Completions(body, metadata=pairs({"x-request-timeout": "1.5"}))
        answer = await read(call)
        assert answer.data.startswith(b":")
        assert answer.events()[-1]["error"]["code"] == "timeout"


async def test_a_deadline_that_the_queue_is_too_long_for_is_refused_at_once() -> None:
    body = {"prompt": PROMPT, "max_tokens": 25, "ignore_eos": True}
    async with one_seat() as mesh:
        waiting = [asyncio.create_task(mesh.completions(body)) for _ in range(NUM_TAKEN + 9)]
        await await_queue(mesh, 9)
        # As long as it is not known how fast the queue moves, nobody is refused.
        early = asyncio.create_task(mesh.completions(body, **{"x-request-timeout": "1"}))
        await await_queue(mesh, 10)
        await eventually(lambda: num_queued(mesh) <= 6)
        refused = await mesh.completions(body, **{"x-request-timeout": "1"})
        # Had it waited for its deadline, it would be 504, as for the early one.
        assert (refused.status, error_of(refused)["code"]) == (429, "deadline_unreachable")
        assert 1 <= int(refused.headers["retry-after"]) <= 5
        assert (await early).status == 504
        for answer in await asyncio.gather(*waiting):
            assert answer.status == 200


@pytest.mark.parametrize("given", ["soon", "0", "-1", "1e3", "nan", "0.0"])
async def test_a_timeout_that_is_none_is_refused_by_name(given: str) -> None:
    async with running_mesh() as mesh:
        for call in (mesh.completions, mesh.chat):
            refused = await call(
                {**SHORT, "messages": [{"role": "user", "content": "x"}]},
                **{"x-request-timeout": given},
            )
            assert (refused.status, error_of(refused)["param"]) == (400, "x-request-timeout")
            assert repr(given) in error_of(refused)["message"]


async def test_a_prompt_that_takes_longer_than_there_is_time_is_not_begun() -> None:
    rate = PrefillRate(seconds_per_token=0.1, num_tokens_per_step=512)
    async with running_mesh(decode=2, prefill_rate=rate) as mesh:
        # Predicted to take 4 s, which may be twice as much as it does.
        body = {"prompt": list(range(10, 50)), "max_tokens": 2}
        refused = await mesh.completions(body, **{"x-request-timeout": "1"})
        assert (refused.status, error_of(refused)["code"]) == (504, "deadline_unreachable")
        assert refused.headers["x-should-retry"] == "false"
        assert is_idle(mesh)
        assert (await mesh.completions(body, **{"x-request-timeout": "3"})).status == 200


async def test_a_worker_computes_nothing_of_what_waits_there_beyond_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths: list[int] = []
    async with one_seat() as mesh:
        engine = mesh.workers["decode-0"].engine
        execute = engine.runner.execute

        def watched(batch: Batch, watch: LayerProgress | None = None) -> StepResult:
            lengths.extend(len(sequence.token_ids) for sequence in batch.sequences)
            return execute(batch, watch)

        monkeypatch.setattr(engine.runner, "execute", watched)
        async with occupied(mesh, 1):
            body = {"prompt": list(range(100, 300)), "max_tokens": 2}
            late = asyncio.create_task(mesh.completions(body, **{"x-request-timeout": "0.4"}))
            await eventually(lambda: engine.load().num_queued == 1)
            assert engine.load().num_pending_prefill_tokens >= 200
            assert (await late).status == 504
            await eventually(lambda: engine.load().num_queued == 0)
        assert (await mesh.completions(SHORT)).status == 200
        assert max(lengths) == len(PROMPT)
