"""Cores that control groups grant, read from a made-up /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pagemesh.sizing.machine import core_limit, usable_cores


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_without_limits_they_are_those_that_the_process_may_run_on(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    assert core_limit(tmp_path) is None
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))


def test_the_smallest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/pod/container\n")
    write(tmp_path, "sys/fs/cgroup/pod/cpu.max", "300000 100000\n")
    write(tmp_path, "sys/fs/cgroup/pod/container/cpu.max", "max 100000\n")
    assert core_limit(tmp_path) == 3


@pytest.mark.parametrize(("quota", "cores"), [(50_000, 1), (150_000, 2), (-1, None)])
def test_control_groups_of_the_first_version_count_too(
    quota: int, cores: int | None, tmp_path: Path
) -> None:
    write(tmp_path, "proc/self/cgroup", "4:memory:/a\n3:cpu,cpuacct:/a\n")
    write(tmp_path, "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", f"{quota}\n")
    write(tmp_path, "sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n")
    assert core_limit(tmp_path) == cores


def test_a_large_limit_gives_no_cores_that_are_not_there(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/a\n")
    write(tmp_path, "sys/fs/cgroup/a/cpu.max", "100000000 100000\n")
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))
    write(tmp_path, "sys/fs/cgroup/a/cpu.max", "50000 100000\n")
    assert usable_cores(tmp_path) == 1
