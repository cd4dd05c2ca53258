"""How soon is everything given back when a client leaves, in each phase of its request?

The client closes its connection, and every process is asked again and again (every few milliseconds, which
the figures contain) until no engine has its request any more, and until its blocks on all workers and its
place in the router are free. The mesh has one slot on each worker, so that phases can be reached on purpose.
A prefill worker stops at the next chunk's boundary: what one chunk takes is beside the figures.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path

from leaving.phases import NUM_OTHERS, PHASES, PREFILL, WORKERS, Stage
from leaving.view import MissedError, View
from mesh import MODEL, Mesh
from random_models import make_model
from report import Report, choice, make_parser

QUESTION = "From the client's disconnect to compute stopped and everything free"
AIM_MS = 250.0


@dataclass(frozen=True)
class Case:
    """A model, and what it is asked."""

    folder: Path
    vocab_size: int
    num_prompt_tokens: int
    num_chunk_tokens: int
    phases: tuple[str, ...]


def cases() -> dict[str, Case]:
    """By name; the second one has chunks that take a while."""
    long = ("waiting for prefill", "in prefill", "receiving KV")
    return {
        "demo": Case(MODEL, 2048, 1500, 8, tuple(PHASES)),
        "160M": Case(make_model("160M-long"), 32_000, 2048, 128, long),
    }


async def empty(stage: Stage) -> None:
    """Return when nobody is in the mesh."""
    await stage.view.when("router", lambda state: state["admitted"] == 0)
    for worker in WORKERS:
        await stage.view.when(worker, lambda state: state.num_requests == state.num_used == 0)


async def cancel(stage: Stage, phase: str) -> tuple[float, float]:
    """Milliseconds until nobody computes for the client, and until all that it had is free.

    MissedError when the phase was over before it was seen, RuntimeError when something is not given back.
    """
    async with PHASES[phase](stage) as client:
        left_at = client.leave()
        try:
            stopped, freed = await everything_back(stage, phase)
        except MissedError as error:
            raise RuntimeError(f"a client left ({phase}), and {error}") from error
    if phase == "waiting for its grammar":
        # A compilation that has begun goes on; it is not to be in the next phase's way.
        await asyncio.sleep(0.5)
    return 1e3 * (stopped - left_at), 1e3 * (freed - left_at)


async def everything_back(stage: Stage, phase: str) -> tuple[float, float]:
    """When nobody was seen to compute for a client that left in this phase, and when all was free."""
    num_others = NUM_OTHERS.get(phase, 0)
    stopped, *freed = await asyncio.gather(
        stage.when_at_most(num_others),
        stage.view.when("router", lambda state: state["admitted"] <= num_others),
        *blocks_free(stage, phase),
    )
    return stopped, max(stopped, *freed)


def blocks_free(stage: Stage, phase: str) -> list[Awaitable[float]]:
    """Waits for the blocks that the client has on all workers in this phase."""
    if phase == "queued":
        # It has none, and the others' grow.
        return []
    if phase == "waiting for prefill":
        # The other prompt's stay, on the prefill worker and on either decode worker.
        return [stage.when_one_is_free()]
    return [stage.view.when(worker, lambda state: state.num_used == 0) for worker in WORKERS]


async def chunk_ms(stage: Stage, case: Case) -> float:
    """What one chunk takes, of a whole prompt's prefill."""
    await empty(stage)
    async with stage.long(max_tokens=1) as client:
        began = await stage.view.when(PREFILL, lambda state: state["running"] == 1)
        first = await client.read_until("data: ")
    return 1e3 * (first - began) / (case.num_prompt_tokens / case.num_chunk_tokens)


async def measure(name: str, mesh: Mesh, case: Case, report: Report, num_rounds: int) -> None:
    """All phases of a case in turn, so many times."""
    stage = Stage(View(mesh), mesh.port, case.folder.name, case.vocab_size, case.num_prompt_tokens)
    while (await stage.view.state("router"))["workers"] < len(WORKERS):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    for _ in range(3):
        chunk = await chunk_ms(stage, case)
        report.sample(f"{name}: one chunk of {case.num_chunk_tokens} tokens", "ms", chunk)
    for _ in range(num_rounds):
        for phase in case.phases:
            await empty(stage)
            try:
                stopped, freed = await cancel(stage, phase)
            except MissedError as error:
                print(f"{name}: {phase}: {error}", file=sys.stderr)
                continue
            report.sample(f"{name}: {phase}: compute stopped", "ms", stopped)
            report.sample(f"{name}: {phase}: all free", "ms", freed)


def main() -> None:
    """Start a mesh for each model; the aims are for the 99th percentile."""
    parser = make_parser("cancellation", QUESTION)
    parser.add_argument("--models", default="demo,160M", help="which of demo and 160M")
    options = parser.parse_args()
    num_rounds = 5 if options.quick else 100
    report = Report("cancellation", QUESTION, {"rounds": num_rounds, "prefill": 1, "decode": 2})
    for name in choice(options.models, cases()):
        case = cases()[name]
        flags = ["--decode", "2", "--max-num-seqs", "1", "--remote-prefill-min-tokens", "16"]
        flags += ["--max-num-batched-tokens", str(case.num_chunk_tokens)]
        with Mesh(*flags, "--no-enable-prefix-caching", model=case.folder) as mesh:
            mesh.await_ready()
            asyncio.run(measure(name, mesh, case, report, num_rounds))
        aim = max(
            AIM_MS, max(report.samples(f"{name}: one chunk of {case.num_chunk_tokens} tokens"))
        )
        for figure in list(report.figures):
            if figure.name.startswith(f"{name}: ") and figure.name.endswith("all free"):
                report.add(f"{figure.name}, p99", "ms", [figure.p99], aim=aim)
    report.print()
    report.write(options.json)


if __name__ == "__main__":
    main()
