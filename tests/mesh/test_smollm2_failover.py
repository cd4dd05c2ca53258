"""A real model on two decode workers: batches and a worker's death change nothing of any answer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from tests.mesh.harness import Mesh, running_mesh
from tests.mesh.test_migration import (
    Told,
    ask_and_disturb,
    num_migrated,
    salted,
    wait_until_whole,
)
from tests.support.smollm2 import smollm2_installed

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(240)]

NUM_STREAMS: Final = 64
MOST_AT_ONCE: Final = NUM_STREAMS // 2
FACT: Final = "Rivers carry sand and stones from the mountains to the sea. "


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """In the file's own type, whose weights stay packed."""
    arguments = ["--model", "smollm2", "--max-model-len", "512", "--no-sample", "--decode", "2"]
    arguments += ["--kv-cache-memory", "0.5", "--lookup-timeout", "5"]
    arguments += ["--max-num-seqs", str(MOST_AT_ONCE)]
    folder = tmp_path_factory.mktemp("smollm2")
    with smollm2_installed(), running_mesh(folder, *arguments) as running:
        wait_until_whole(running, 1)
        yield running


def test_64_streams_at_once_have_the_tokens_that_each_has_alone(mesh: Mesh) -> None:
    """And the same log probabilities, to the last bit, whatever the lengths of the prompts in a batch."""
    requests: list[dict[str, Any]] = [
        {"prompt": f"{number}. {FACT * (number % 5)}The most beautiful", "temperature": number % 2}
        for number in range(NUM_STREAMS)
    ]
    for number, request in enumerate(requests):
        request |= {"model": "smollm2", "max_tokens": 8, "logprobs": 2, "seed": number}
    alone = [Told().read(mesh, salted(request, "alone")) for request in requests]
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        reading = [
            pool.submit(Told().read, mesh, salted(request, "together")) for request in requests
        ]
    together = [each.result() for each in reading]
    assert [told.choices for told in together] == [told.choices for told in alone]
    assert [told.usage for told in together] == [told.usage for told in alone]
    mesh.wait_until_idle()


def test_an_answer_goes_on_with_the_same_tokens_when_its_worker_dies(mesh: Mesh) -> None:
    request = {
        "model": "smollm2",
        "prompt": FACT * 4,
        "temperature": 0,
        "max_tokens": 100,
        "logprobs": 2,
    }
    before = num_migrated(mesh, "lost")
    undisturbed, told = ask_and_disturb(mesh, request, mesh.kill)
    assert len(told.choices[0][1]) == 100
    assert told.choices == undisturbed.choices
    assert told.usage == undisturbed.usage
    assert num_migrated(mesh, "lost") - before == 1
