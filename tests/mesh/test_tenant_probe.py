"""Whether the time to the first token tells a tenant what another one has asked."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from pagemesh.router.tenants.keys import hash_of
from tests.mesh.harness import DEADLINE_S, MODEL, Mesh, running_mesh
from tests.support.late_imports import openai

pytestmark = pytest.mark.costly

VICTIM, PROBER = "pm-victim-0123456789abcdef", "pm-prober-0123456789abcdef"
NUM_ROUNDS = 24
NUM_WORDS = 320

WORDS = [
    "sea",
    "ship",
    "harbour",
    "wind",
    "mast",
    "sail",
    "rope",
    "tide",
    "storm",
    "crew",
    "chart",
    "star",
    "coast",
    "light",
    "fog",
    "bell",
]


class Timing(NamedTuple):
    seconds: float
    num_cached: int


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("probed")
    path = folder / "keys.yaml"
    keys = {"victim": VICTIM, "prober": PROBER}
    path.write_text(json.dumps({"tenants": {n: {"keys": [hash_of(k)]} for n, k in keys.items()}}))
    with running_mesh(folder, "--api-key-file", str(path)) as running:
        yield running


def ask(client: openai.OpenAI, prompt: str) -> Timing:
    """Seconds until the answer's only token."""
    began_at = time.perf_counter()
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=1, temperature=0)
    seconds = time.perf_counter() - began_at
    assert answer.usage is not None
    details = answer.usage.prompt_tokens_details
    return Timing(seconds, (details and details.cached_tokens) or 0)


def how_often_longer(some: Sequence[float], others: Sequence[float]) -> float:
    """Share of all pairs in which the first is longer: 0.5 when nobody could tell them apart (Mann and Whitney)."""
    return sum(one > other for one in some for other in others) / (len(some) * len(others))


def test_a_probe_for_another_tenants_prompt_takes_as_long_as_for_one_that_nobody_asked(
    mesh: Mesh,
) -> None:
    """The same probes tell cached and uncached prompts of one tenant apart, so they are good enough."""
    draw = random.Random(7)

    def fresh() -> str:
        return " ".join(draw.choices(WORDS, k=NUM_WORDS))

    def connect(key: str) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{mesh.url}/v1", api_key=key, max_retries=0, timeout=DEADLINE_S
        )

    times: dict[str, list[Timing]] = {"own": [], "others": [], "nobodys": []}
    with connect(VICTIM) as victim, connect(PROBER) as prober:
        for client in (victim, prober):
            ask(client, fresh())
        for _ in range(NUM_ROUNDS):
            secret, own = fresh(), fresh()
            ask(victim, secret)
            ask(prober, own)
            probes = [("own", own), ("others", secret), ("nobodys", fresh())]
            # In any order, so that what changes with time changes all of them.
            for kind, prompt in draw.sample(probes, k=len(probes)):
                times[kind].append(ask(prober, prompt))
    seconds = {kind: [timing.seconds for timing in timings] for kind, timings in times.items()}
    # With so many rounds, equal distributions give 0.5 ± 0.08 (one standard deviation).
    assert how_often_longer(seconds["nobodys"], seconds["own"]) > 0.9
    assert 0.2 < how_often_longer(seconds["nobodys"], seconds["others"]) < 0.8
    medians = {kind: statistics.median(values) for kind, values in seconds.items()}
    saved = medians["nobodys"] - medians["own"]
    assert abs(medians["nobodys"] - medians["others"]) < saved / 3, medians
    assert {timing.num_cached for timing in times["others"]} == {0}
    assert min(timing.num_cached for timing in times["own"]) > 0
