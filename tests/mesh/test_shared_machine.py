"""Workers of a real mesh lend each other cores and hold weights once, also those that were killed and are back."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mesh.conftest import DEMO
from tests.mesh.harness import DEADLINE_S, MODEL, Mesh, running_mesh, until

pytestmark = pytest.mark.costly

BORROWED = "pagemesh:borrowed_core_seconds_total"
FLAGS = ("--no-sample", "--threads", "2", "--remote-prefill-min-tokens", "64")


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """With a core each; all prompts go to the prefill worker."""
    folder = tmp_path_factory.mktemp("cores")
    with running_mesh(folder, "--model", str(DEMO), *FLAGS) as mesh:
        mesh.wait_until_complete()
        yield mesh


def check_borrowing(mesh: Mesh) -> None:
    """Prompts have the prefill worker borrow, as soon as the router sends it some."""
    before = mesh.metric("prefill-0", BORROWED)

    def borrows() -> bool:
        body = {
            "model": MODEL,
            "prompt": random.choices(range(20, 2000), k=1000),
            "max_tokens": 1,
        }
        answer = mesh.http.post(f"{mesh.url}/v1/completions", json=body, timeout=DEADLINE_S)
        assert answer.status_code == 200, answer.text
        return mesh.metric("prefill-0", BORROWED) > before

    until(borrows, "the prefill worker borrows")


def test_a_prompt_borrows_the_cores_of_an_idle_decode_worker(two_workers: Mesh) -> None:
    check_borrowing(two_workers)


@pytest.mark.parametrize("engine", [False, True], ids=["worker", "engine"])
def test_a_worker_that_was_killed_shares_cores_again(two_workers: Mesh, engine: bool) -> None:
    wait_until_back = two_workers.kill("prefill-0", engine=engine)
    wait_until_back()
    check_borrowing(two_workers)


def shared_weights(mesh: Mesh, worker: str) -> tuple[int, int]:
    """KiB of weights that an engine has mapped, and of these its share by how many processes have them."""
    (engine,) = mesh.parts()[worker].children()
    smaps = Path(f"/proc/{engine.pid}/smaps").read_text("ascii")
    _, *mappings = smaps.split("memfd:pagemesh-weights")

    def size(name: str) -> int:
        # Each mapping's first line of that name; behind it come those of other mappings.
        found = [re.search(rf"^{name}: +(\d+) kB", text, re.MULTILINE) for text in mappings]
        return sum(int(match[1]) for match in found if match)

    return size("Rss"), size("Pss")


def check_held_once(mesh: Mesh) -> None:
    for worker in ("prefill-0", "decode-0"):
        resident, share = shared_weights(mesh, worker)
        assert resident > 0
        assert share == pytest.approx(resident / 2, rel=0.02), worker


def test_workers_hold_their_weights_once(two_workers: Mesh) -> None:
    check_held_once(two_workers)
    before = shared_weights(two_workers, "decode-0")
    body = {"model": MODEL, "prompt": list(range(20, 200)), "max_tokens": 16, "temperature": 0}

    def answer() -> str:
        url = f"{two_workers.url}/v1/completions"
        choice = two_workers.http.post(url, json=body, timeout=DEADLINE_S).json()["choices"][0]
        return str(choice["text"])

    first = answer()
    for worker in ("decode-0", "prefill-0"):
        two_workers.kill(worker)()
        two_workers.wait_until_complete()
        check_held_once(two_workers)
        assert answer() == first
    # What was given up and loaded again takes no more room than before.
    assert shared_weights(two_workers, "decode-0") == pytest.approx(before, rel=0.02)
