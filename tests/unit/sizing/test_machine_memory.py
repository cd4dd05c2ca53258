"""Memory of the machine and of the control groups around a process, read from a made-up /proc and /sys."""

from __future__ import annotations

from pathlib import Path

from pagemesh.sizing.machine import (
    MachineMemory,
    ProcessMemory,
    machine_memory,
    process_memory,
    reset_peak,
)

GIB = 2**30


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def make_machine(root: Path, cgroup: str) -> None:
    write(
        root,
        "proc/meminfo",
        f"MemTotal: {16 * 2**20} kB\nMemAvailable: {12 * 2**20} kB\nHugePages: 0\n",
    )
    write(root, "proc/self/cgroup", cgroup)


def test_without_limits_it_is_the_machines(tmp_path: Path) -> None:
    make_machine(tmp_path, "0::/\n")
    assert machine_memory(tmp_path) == MachineMemory(16 * GIB, 12 * GIB)


def test_the_smallest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    make_machine(tmp_path, "0::/pod/container\n")
    write(tmp_path, "sys/fs/cgroup/pod/memory.max", f"{4 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/pod/memory.current", f"{3 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/pod/memory.stat", f"anon 5\ninactive_file {1 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/pod/container/memory.max", "max\n")
    assert machine_memory(tmp_path) == MachineMemory(4 * GIB, 2 * GIB)


def test_control_groups_of_the_first_version_count_too(tmp_path: Path) -> None:
    make_machine(tmp_path, "5:cpu:/a\n3:memory,x:/a\n")
    write(tmp_path, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", f"{2 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/memory/a/memory.usage_in_bytes", "0\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert machine_memory(tmp_path) == MachineMemory(2 * GIB, 2 * GIB)


def test_a_system_that_says_nothing_is_no_error(tmp_path: Path) -> None:
    assert machine_memory(tmp_path) is None
    assert process_memory(tmp_path) is None
    assert not reset_peak(tmp_path)


def test_a_process_knows_its_memory_and_its_peak(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/status", "Name:\tpython\nVmHWM:\t 300 kB\nVmRSS:\t 200 kB\n")
    assert process_memory(tmp_path) == ProcessMemory(200 * 1024, 300 * 1024)
    write(tmp_path, "proc/self/clear_refs", "")
    assert reset_peak(tmp_path)
    assert (tmp_path / "proc/self/clear_refs").read_text() == "5"


def test_this_machine_has_memory() -> None:
    here = machine_memory()
    assert here is not None
    assert 2**28 < here.available <= here.total
