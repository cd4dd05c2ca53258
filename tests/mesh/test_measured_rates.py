"""What a real mesh shows of its rates, put into a file for `pagemesh sim --rates`."""

from __future__ import annotations

import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml

from pagemesh.cli.main import main
from tests.mesh.conftest import DEMO
from tests.mesh.harness import DEADLINE_S, MODEL, Mesh, running_mesh

pytestmark = pytest.mark.costly

LENGTHS: Final = (100, 200, 400, 700, 1000)
"""Tokens of prompts, so that a token, a pair and a step can be told apart."""
ROUNDS: Final = 4
NUM_OUTPUT_TOKENS: Final = 16
REMOTE: Final = ("--remote-prefill-min-tokens", "64")


@pytest.fixture(scope="module")
def remote_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """All prompts go to the prefill worker, and their KV over the link."""
    folder = tmp_path_factory.mktemp("measured")
    with running_mesh(folder, "--model", str(DEMO), "--no-sample", *REMOTE) as up:
        up.wait_until_complete()
        yield up


def test_rates_that_a_mesh_shows_are_those_of_a_simulation(
    remote_mesh: Mesh, tmp_path: Path
) -> None:
    draws = random.Random(0)
    lengths = [length for _ in range(ROUNDS) for length in LENGTHS]
    with httpx.Client(base_url=remote_mesh.url, timeout=DEADLINE_S) as client:
        itls = [stream(client, draws, length) for length in lengths]
    rates = shown_rates(remote_mesh, statistics.median(itls))
    file, trace, figures = (tmp_path / name for name in ("rates.yaml", "trace.jsonl", "figures"))
    file.write_text(yaml.safe_dump(rates))
    trace.write_text(one_by_one(lengths))
    mesh = ["--decode", "1", "--prefill", "1", "--policies", "kv_aware", *REMOTE]
    files = ["--rates", str(file), "--trace", str(trace), "--json", str(figures)]
    assert main(["sim", *mesh, *files]) == 0
    written = json.loads(figures.read_text())
    (run,) = written["runs"]
    assert run["paths"] == {"remote": len(lengths)}
    model = written["settings"]["model"]
    assert model["prefill"]["prefill"] == rates["prefill"]["prefill"]
    assert model["link"] == rates["link"]
    # What the rates say of the median prompt, which nobody could be quicker with. Those of decode workers would be.
    num_tokens, shown = statistics.median(lengths), rates["prefill"]["prefill"]
    num_pairs = num_tokens * (num_tokens + 1) / 2
    computed = (
        num_tokens * shown["seconds_per_token"]
        + num_pairs * shown["seconds_per_pair"]
        + shown["seconds_per_step"]
    )
    assert run["ttft_p50"] >= computed
    assert run["itl_p50"] == pytest.approx(rates["decode"]["decode"]["seconds_per_step"], rel=0.1)


def stream(client: httpx.Client, draws: random.Random, num_tokens: int) -> float:
    """Ask for an answer to a prompt that nobody has asked before; median seconds between two pieces."""
    body = {
        "model": MODEL,
        "prompt": [draws.randrange(20, 2000) for _ in range(num_tokens)],
        "max_tokens": NUM_OUTPUT_TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    with client.stream("POST", "/v1/completions", json=body) as response:
        times = [
            time.perf_counter()
            for line in response.iter_lines()
            if line.startswith("data: {") and json.loads(line[6:])["choices"]
        ]
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(times))


def shown_rates(mesh: Mesh, itl: float) -> dict[str, Any]:
    """As docs/simulator.md says where the numbers are."""
    token, pair, step = (
        mesh.metric("prefill-0", f"pagemesh:prefill_seconds_per_{name}")
        for name in ("token", "pair", "step")
    )
    prompts = {"seconds_per_token": token, "seconds_per_pair": pair, "seconds_per_step": step}
    answers = {"seconds_per_sequence": 0.0, "seconds_per_pair": 0.0, "seconds_per_step": itl}
    # Nobody measured them: no prompt is computed there.
    quick = {name: seconds / 100 for name, seconds in prompts.items()}
    worker = {"kv_tokens": 20_000, "max_num_batched_tokens": 512, "max_model_len": 2048}
    link = {
        name: mesh.metric("decode-0", f"pagemesh:link_{name}", sender="prefill-0")
        for name in ("bytes_per_second", "latency_seconds")
    }
    return {
        "num_layers": 6,
        "kv_bytes_per_token": 6144,
        "link": link,
        "decode": worker | {"decode": answers, "prefill": quick},
        "prefill": worker | {"prefill": prompts},
    }


def one_by_one(lengths: Sequence[int]) -> str:
    """The same prompts as a trace, each long after the one in front of it."""
    ids = itertools.count()
    lines = (
        {
            "timestamp": 10_000 * number,
            "input_length": length,
            "output_length": NUM_OUTPUT_TOKENS,
            "hash_ids": [next(ids) for _ in range(-(-length // 512))],
        }
        for number, length in enumerate(lengths)
    )
    return "".join(f"{json.dumps(line)}\n" for line in lines)
