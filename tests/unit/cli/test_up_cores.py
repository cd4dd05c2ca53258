"""Cores of a mesh on one machine: shares, and the table by which workers lend each other some."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import pytest

from pagemesh.cli.settings import UpConfig
from pagemesh.cli.up.cores import cores_to_lend, share_cores, worker_threads
from pagemesh.cli.up.plan import Stage, make_plan, num_ports


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
    mesh = make_plan(config, range(20000, 20000 + num_ports(config)), Path("/run"), None, cores=9)
    places = {
        part.name: (part.environment["PAGEMESH_SHARED_CORES"], part.descriptors)
        for part in mesh.parts
        if part.stage is Stage.WORKER
    }
    assert places == {
        "prefill-0": ("9:0", (9,)),
        "decode-0": ("9:1", (9,)),
        "decode-1": ("9:2", (9,)),
    }
    assert worker_threads(config) == [1, 1, 2]
    assert not any(part.descriptors for part in mesh.parts if part.stage is not Stage.WORKER)


@pytest.mark.parametrize(
    ("config", "gpus"),
    [
        pytest.param(UpConfig(prefill=0, decode=1), (), id="one worker"),
        pytest.param(UpConfig(), ("0",), id="GPUs"),
    ],
)
def test_there_is_no_table_where_no_cores_could_be_lent(
    config: UpConfig, gpus: tuple[str, ...]
) -> None:
    with cores_to_lend(config, gpus) as table:
        assert table is None


def test_the_table_has_the_cores_that_up_may_use() -> None:
    with cores_to_lend(UpConfig(decode=2, threads=7), ()) as table:
        assert table is not None
        numbers = array("I", os.pread(table, 1 << 12, 0))
    assert list(numbers) == [7, 2, 0, 0, 2, 0, 0, 3, 0, 0]
