"""A worker that hashes blocks otherwise than its router is shown, gets no credit, and serves all the same."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from pagemesh.core.request import EngineRequest
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.sampling.params import SamplingParams
from tests.contract.router_harness import MODEL, Mesh, eventually, running_mesh

PROMPT = list(range(10, 74))


@pytest.fixture(scope="module")
def odd_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model folder with another tokenizer."""
    folder = tmp_path_factory.mktemp("odd")
    for name in ("chat_template.jinja", "config.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, folder)
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    del tokenizer["model"]["merges"][100:]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(folder)


async def ask(mesh: Mesh, num_tokens: int = 2) -> Any:
    """Have the prompt answered; gives the answer's body."""
    answer = await mesh.completions({"prompt": PROMPT, "max_tokens": num_tokens, "seed": 7})
    assert answer.status == 200
    return answer.json()


async def degraded(mesh: Mesh) -> dict[str, str]:
    """Reasons by worker, as /health shows them."""
    return {
        found["worker_id"]: found["reason"] for found in (await mesh.health())["degraded_workers"]
    }


@pytest.mark.parametrize(("odd", "num_cached"), [("decode-0", 0), ("decode-1", 63)])
async def test_only_a_healthy_holder_is_worth_a_queue(
    odd_folder: str, odd: str, num_cached: int
) -> None:
    folders = {name: odd_folder if name == odd else str(MODEL) for name in ("decode-0", "decode-1")}
    async with running_mesh(decode=0) as mesh:
        holder = await mesh.add(
            DECODE_ROLE, "decode-0", seconds_per_token=0.01, model_folder=folders["decode-0"]
        )
        await ask(mesh)
        await mesh.add(DECODE_ROLE, "decode-1", model_folder=folders["decode-1"])
        assert await degraded(mesh) == {odd: "tokenizer"}
        sampling = SamplingParams(max_tokens=400, ignore_eos=True)
        holder.engine.submit(EngineRequest("busy", (1, 2, 3), sampling))
        known = mesh.router._directory.workers
        await eventually(lambda: known()[0].load.running_request_count == 1)
        usage = (await ask(mesh))["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == num_cached


async def test_degraded_workers_are_listed_and_counted_until_they_are_mended(
    odd_folder: str,
) -> None:
    gauge = "pagemesh:workers_degraded"
    async with running_mesh(decode=1) as mesh:
        assert (await mesh.health())["degraded_workers"] == []
        await mesh.add(DECODE_ROLE, "decode-odd", model_folder=odd_folder)
        health = await mesh.health()
        assert (health["status"], health["decode_workers"]) == ("ok", 2)
        (found,) = health["degraded_workers"]
        assert found.keys() == {"worker_id", "role", "reason", "advice"}
        assert (found["worker_id"], found["role"]) == ("decode-odd", "decode")
        labels = 'model_name="demo",reason="{}",role="{}"'
        assert await mesh.metric(f"{gauge}{{{labels.format('tokenizer', 'decode')}}}") == 1
        assert await mesh.metric(f"{gauge}{{{labels.format('template', 'decode')}}}") == 0
        await mesh.remove("decode-odd")
        await mesh.add(DECODE_ROLE, "decode-odd", model_folder=str(MODEL))
        assert await degraded(mesh) == {}
        assert await mesh.metric(f"{gauge}{{{labels.format('tokenizer', 'decode')}}}") == 0


@pytest.mark.parametrize(
    ("decode", "prefill", "num_received"),
    [("fake", "odd", 0), ("odd", "fake", 0), ("odd", "odd", 64)],
)
async def test_only_workers_that_name_blocks_alike_send_each_other_kv(
    decode: str, prefill: str, num_received: int
) -> None:
    async with running_mesh(decode=0) as mesh:
        receiver = await mesh.add(DECODE_ROLE, "decode-0", naming=decode)
        sender = await mesh.add(PREFILL_ROLE, "prefill-0", naming=prefill)
        named = {"decode-0": decode, "prefill-0": prefill}
        assert await degraded(mesh) == {
            worker_id: "hashing" for worker_id, naming in named.items() if naming == "odd"
        }
        await ask(mesh, 4)
        assert receiver.metric("pagemesh:kv_tokens_received_total") == num_received
        assert (sender.metric("pagemesh:kv_bytes_sent_total", rpc="prefill") > 0) == (
            num_received > 0
        )
        assert receiver.metric("pagemesh:remote_prefills_total", outcome="fallback") == 0


async def test_a_mesh_of_degraded_workers_serves() -> None:
    async with running_mesh(decode=2, naming="odd") as mesh:
        assert len(await degraded(mesh)) == 2
        assert (await mesh.health())["status"] == "ok"
        body = await ask(mesh, 4)
        async with running_mesh() as healthy:
            assert (await ask(healthy, 4))["choices"] == body["choices"]
