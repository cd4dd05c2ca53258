"""Workers of a real mesh lend each other cores, also those that were killed and are back."""

from __future__ import annotations

import random
from collections.abc import Iterator

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
