"""What the suite's processes find around them: the tree's modules, a GPU, and memory in the place of a disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tools.gpu_suite.record import ROOT

BUILD: Final = ROOT / "build/gpu-suite"
"""Kept between runs, and never handed back with the figures."""

SHARED_MEMORY: Final = Path("/dev/shm")

MODEL_BYTES: Final = 20e9
"""Of the large model's files, with some room."""

_HOST_BYTES: Final = 48e9
"""That must be free for a file system in memory to be mounted: the model, and those who read it."""

_LOOK_S: Final = 120.0


def site_folder() -> Path:
    """Where packages from wheels are installed, for the Python that runs this."""
    return BUILD / f"site-{sys.implementation.cache_tag}"


def environment(site: Path, tree: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Of all processes: wheels first, then the tree, then what was there."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        roots = tomllib.load(file)["tool"]["hatch"]["build"]["dev-mode-dirs"]
    paths = [site, *(ROOT / root for root in roots), ROOT]
    python_path = [str(path) for path in paths]
    if inherited.get("PYTHONPATH"):
        python_path.append(inherited["PYTHONPATH"])
    own = {"PYTHONPATH": os.pathsep.join(python_path), "PYTHONUNBUFFERED": "1"}
    if not (ROOT / ".git").exists():
        # Figures say of which tree they are.
        own["PAGEMESH_COMMIT"] = inherited.get("PAGEMESH_COMMIT") or f"tree {tree}"
    return dict(inherited) | own


def why_no_gpu(variables: Mapping[str, str]) -> str:
    """Empty where torch finds a CUDA device; where torch itself is missing that is for others to say."""
    program = "import sys, torch; sys.exit(3 if not torch.cuda.is_available() else 0)"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=dict(variables),
            capture_output=True,
            timeout=_LOOK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"torch did not find out within {_LOOK_S:.0f} s whether there is a CUDA device here"
    return "torch finds no CUDA device here" if done.returncode == 3 else ""


def models_in_memory(variables: Mapping[str, str]) -> Path | None:
    """A folder in memory for the large model, which a disk would take minutes to write.

    None where the caller has named a place, or where there is no such memory.
    """
    if variables.get("XDG_CACHE_HOME"):
        return None
    shared = SHARED_MEMORY / "pagemesh-gpu-suite"
    has_model = (shared / "pagemesh").is_dir()
    if has_model or (SHARED_MEMORY.is_dir() and _free_bytes(SHARED_MEMORY) > MODEL_BYTES):
        shared.mkdir(exist_ok=True)
        return shared
    mounted = BUILD / "memory"
    if mounted.is_mount():
        return mounted
    if os.geteuid() != 0 or _available_bytes() < _HOST_BYTES:
        return None
    mounted.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={MODEL_BYTES:.0f}", "tmpfs", str(mounted)]
    try:
        done = subprocess.run(mount, capture_output=True, timeout=_LOOK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return mounted if done.returncode == 0 else None


def _free_bytes(folder: Path) -> int:
    """Of a file system in memory: no more than the machine has."""
    return min(shutil.disk_usage(folder).free, _available_bytes())


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    return 0
