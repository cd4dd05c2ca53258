"""Links are measured where KV is received, and the routers hear of them."""

from __future__ import annotations

from pagemesh.decode.service import DECODE_ROLE
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.v1 import decode_pb2, types_pb2
from tests.contract.router_harness import eventually, running_mesh
from tests.fakes.engine import FakeEngine
from tests.support.workers import RouterSession, running_worker

# As many as measure a link.
PROMPTS = [[10 + (factor * i) % 900 for i in range(16 * 150)] for factor in (7, 11)]


def big_engine() -> FakeEngine:
    return FakeEngine(num_blocks=200, max_model_len=3000)


async def test_a_pull_of_cached_blocks_gives_the_speed_of_its_link() -> None:
    async with (
        running_worker(DECODE_ROLE, big_engine()) as holder,
        running_worker(DECODE_ROLE, big_engine()) as decode,
    ):
        plan = decode_pb2.PrefillPlan(source=holder.source(150))
        for prompt in PROMPTS:
            async with RouterSession(holder.address) as session:
                await session.generate(1, prompt, max_tokens=1)
            async with RouterSession(decode.address) as session:
                await session.generate(1, prompt, max_tokens=2, plan=plan)
        (link,) = decode.worker.links.speeds()
        assert link.worker_id == holder.worker.info.worker_id
        # 150 blocks of 512 bytes, in less than a minute.
        assert link.bytes_per_second > 1000
        assert link.latency_seconds > 0
        sender = link.worker_id
        assert decode.sample("pagemesh:link_bytes_per_second", sender=sender) > 1000
        assert decode.sample("pagemesh:link_latency_seconds", sender=sender) > 0
        assert holder.worker.links.speeds() == []


async def test_a_worker_that_computes_a_prompt_tells_nothing_of_its_links_speed() -> None:
    engine = FakeEngine(num_blocks=200, max_model_len=3000, seconds_per_token=0.01)
    async with (
        running_worker(PREFILL_ROLE, engine) as prefill,
        running_worker(DECODE_ROLE, big_engine()) as decode,
    ):
        async with RouterSession(decode.address) as session:
            for handle, prompt in enumerate(PROMPTS, 1):
                await session.generate(handle, prompt, max_tokens=2, plan=prefill.plan)
        (link,) = decode.worker.links.speeds()
        assert (link.worker_id, link.bytes_per_second) == (prefill.worker.info.worker_id, 0)
        assert link.latency_seconds > 0


async def test_routers_hear_how_long_prompts_take_and_how_fast_links_are() -> None:
    async with running_mesh(decode=1, prefill=1) as mesh:
        for prompt in PROMPTS:
            await mesh.completions({"prompt": prompt[:100], "max_tokens": 2})

        def loads() -> dict[str, types_pb2.WorkerLoad]:
            return {w.worker_id: w.load for w in mesh.router._directory.workers()}

        await eventually(lambda: bool(loads()["decode-0"].links))
        await eventually(lambda: loads()["prefill-0"].prefill_rate.step_token_count == 512)
        assert [link.worker_id for link in loads()["decode-0"].links] == ["prefill-0"]
        assert loads()["decode-0"].links[0].latency_seconds > 0
        assert not loads()["prefill-0"].links

        def is_told_as_shown() -> bool:
            shown = mesh.workers["prefill-0"].metric(
                "pagemesh:prefill_seconds_per_token", model_name="demo"
            )
            return shown == loads()["prefill-0"].prefill_rate.seconds_per_token > 0

        # The worker shows what it learns of a step a little sooner than routers hear of it.
        await eventually(is_told_as_shown)
