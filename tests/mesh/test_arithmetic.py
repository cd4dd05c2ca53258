"""Two workers, and a third one whose numbers are others for real: it gets no KV of theirs, and answers at last."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from pagemesh.v1 import types_pb2
from tests.mesh.altered_worker import DEMO, OTHER_ARITHMETIC, AlteredWorker, altered_worker
from tests.mesh.harness import RETURN_DEADLINE_S, Mesh, running_mesh, until
from tests.mesh.router_calls import address_of, answers, ask, num_workers
from tests.mesh.test_doctor import diagnose, frozen
from tests.support.other_arithmetic import NAME
from tests.support.workers import RouterSession

pytestmark = pytest.mark.costly

PROMPT = [30 + (7 * i) % 400 for i in range(100)]
"""Six full blocks and four tokens."""

NUM_TOKENS = 1000
DECODERS = ("decode-0", "decode-1")
USUAL = "cpu-fma-float32"


@pytest.fixture(scope="module")
def equal_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """All compute alike; what is not cached is always prefilled remotely, and what is somewhere is pulled."""
    arguments = ["--model", str(DEMO), "--no-sample", "--decode", "2", "--lookup-timeout", "5"]
    arguments += ["--remote-prefill-min-tokens", "16", "--max-num-batched-tokens", "64"]
    with running_mesh(tmp_path_factory.mktemp("arithmetic"), *arguments) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(equal_mesh: Mesh) -> list[int]:
    """The answer as it is when nothing happens; one of the workers has the prompt in its cache then."""
    until(lambda: num_workers(address_of(equal_mesh, "router")) == (2, 1), "all are there", 60)
    return ask(address_of(equal_mesh, "router"), PROMPT, NUM_TOKENS)


@pytest.fixture(scope="module")
def other(equal_mesh: Mesh, undisturbed: list[int]) -> Iterator[AlteredWorker]:
    with altered_worker(equal_mesh, "decode-other", OTHER_ARITHMETIC) as worker:
        router = address_of(equal_mesh, "router")
        until(lambda: num_workers(router) == (3, 1), "the router reaches it")
        yield worker


def running_on(mesh: Mesh) -> str:
    """Which of the equal workers runs something."""
    found = ""

    def look() -> bool:
        nonlocal found
        found = next((name for name in DECODERS if mesh.num_used_blocks(name)), "")
        return bool(found)

    until(look, "a worker runs the request")
    return found


def num_generated(mesh: Mesh, worker: str) -> float:
    return mesh.metric(worker, "vllm:generation_tokens_total")


def num_changes(mesh: Mesh) -> float:
    return mesh.metric("router", "pagemesh:arithmetic_changes_total")


async def continued(worker: AlteredWorker, token_ids: list[int]) -> list[int]:
    """How a worker goes on by itself, asked for a prompt and all that was answered."""
    sampling = types_pb2.SamplingParams(
        max_tokens=NUM_TOKENS - len(token_ids), seed=1, ignore_eos=True
    )
    async with RouterSession(worker.address) as session:
        received = await session.generate(1, [*PROMPT, *token_ids], sampling=sampling)
    return received.token_ids


async def test_an_answer_goes_to_another_arithmetic_last_and_takes_no_kv_along(
    equal_mesh: Mesh, undisturbed: list[int], other: AlteredWorker
) -> None:
    mesh, token_ids = equal_mesh, list[int]()
    before = {name: num_generated(mesh, name) for name in DECODERS}
    changes, moves = num_changes(mesh), mesh.metric("router", "pagemesh:requests_resubmitted_total")
    # Whoever is killed stays away.
    with (
        frozen(psutil.Process(mesh.process.pid)),
        answers(address_of(mesh, "router"), PROMPT, NUM_TOKENS) as pieces,
    ):
        token_ids += next(pieces).token_ids
        first = running_on(mesh)
        (second,) = {*DECODERS} - {first}
        mesh.parts()[first].kill()
        until(lambda: num_generated(mesh, second) > before[second] + 5, "it goes on there")
        # One of its own arithmetic was there.
        assert (num_changes(mesh) - changes, other.num_generated()) == (0, 0)
        mesh.parts()[second].kill()
        token_ids += [token_id for piece in pieces for token_id in piece.token_ids]
    assert mesh.metric("router", "pagemesh:requests_resubmitted_total") - moves == 2
    assert num_changes(mesh) - changes == 1
    pairs = enumerate(zip(token_ids, undisturbed, strict=True))
    num_equal = next(place for place, (one, two) in pairs if one != two)
    # It is as the two had begun it, and then as the third one goes on by itself behind that.
    assert num_equal > 5
    assert await continued(other, token_ids[:num_equal]) == token_ids[num_equal:]
    # It took nothing of the prefill worker's, which has all of the prompt.
    assert other.metric("pagemesh:kv_tokens_received_total") == 0
    assert other.metric("pagemesh:kv_import_failures_total") == 0


def test_a_mesh_of_mixed_arithmetic_is_named(equal_mesh: Mesh, other: AlteredWorker) -> None:
    router = address_of(equal_mesh, "router")
    until(lambda: num_workers(router) == (3, 1), "whoever was killed is back", RETURN_DEADLINE_S)
    found = diagnose(equal_mesh)
    assert found.exit_code == 0
    assert found.findings("models").keys() == {"demo"}
    what = found.findings("models")["demo"]["what"]
    classes = f"{USUAL} (decode-0, decode-1, prefill-0) and {NAME} (decode-other)"
    assert f"Workers of demo compute with 2 kinds of arithmetic: {classes}." in what
    # Nobody is degraded by that, and it says the same on the page.
    assert set(found.findings("parity")) == set()
    (model,) = equal_mesh.health()["models"]
    assert model["arithmetic"] == [USUAL, NAME]
    shown = equal_mesh.http.get(f"{equal_mesh.url}/mesh").json()
    (mixed,) = shown["mixed_arithmetic"]
    assert mixed["what"] == what
