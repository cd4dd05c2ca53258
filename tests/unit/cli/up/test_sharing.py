"""What workers of one machine share: cores, and a table by which they lend each other some, and weights."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import pytest

from pagemesh.cli.settings import UpConfig
from pagemesh.cli.up.plan import Stage, make_plan, num_ports
from pagemesh.cli.up.sharing import Shared, share_cores, shared_by_workers, worker_threads


@pytest.mark.parametrize(
    ("num_cores", "num_workers", "threads"),
    [
        (1, 1, [1]),
        (1, 3, [1, 1, 1]),
        (2, 2, [1, 1]),
        (8, 1, [8]),
        (8, 3, [2, 3, 3]),
        (16, 2, [8, 8]),
    ],
)
def test_cores_are_shared_out(num_cores: int, num_workers: int, threads: list[int]) -> None:
    assert share_cores(num_cores, num_workers) == threads


def test_workers_find_their_place_among_those_that_share_cores() -> None:
    config = UpConfig(prefill=1, decode=2, threads=4)
    ports = range(20000, 20000 + num_ports(config))
    mesh = make_plan(config, ports, Path("/run"), None, shared=Shared(cores=9, weights=11))
    workers = [part for part in mesh.parts if part.stage is Stage.WORKER]
    places = {part.name: part.environment["PAGEMESH_SHARED_CORES"] for part in workers}
    assert places == {"prefill-0": "9:0", "decode-0": "9:1", "decode-1": "9:2"}
    assert {part.environment["PAGEMESH_SHARED_WEIGHTS"] for part in workers} == {"11"}
    assert {part.descriptors for part in workers} == {(9, 11)}
    assert worker_threads(config) == [1, 1, 2]
    assert not any(part.descriptors for part in mesh.parts if part.stage is not Stage.WORKER)


@pytest.mark.parametrize(
    ("config", "gpus"),
    [
        pytest.param(UpConfig(prefill=0, decode=1), (), id="one worker"),
        pytest.param(UpConfig(), ("0",), id="GPUs"),
    ],
)
def test_nothing_is_shared_where_nobody_could_use_it(
    config: UpConfig, gpus: tuple[str, ...]
) -> None:
    with shared_by_workers(config, gpus) as shared:
        assert shared is None


def test_the_table_has_the_cores_that_up_may_use() -> None:
    with shared_by_workers(UpConfig(decode=2, threads=7), ()) as shared:
        assert shared is not None
        numbers = array("I", os.pread(shared.cores, 1 << 12, 0))
    assert list(numbers) == [7, 2, 0, 0, 2, 0, 0, 3, 0, 0]
