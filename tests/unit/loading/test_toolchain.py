"""What Triton needs of a machine with a GPU is looked for before a model is loaded, and named where it is missing."""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path

import pytest

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig
from pagemesh.engine.cuda.device import check_toolchain
from pagemesh.errors import ConfigError
from pagemesh.loading import cuda
from pagemesh.loading.engine import load_engine

HEADERS = sysconfig.get_path("include", "posix_prefix")
BESIDE = "install what it misses (Debian and Ubuntu: apt-get install gcc libc6-dev)"
CPU = "; --device cpu does without"


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder where programs are found; Triton is installed, whatever this machine has."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", {"triton": True}.get)
    return tmp_path


def put_compiler(path: Path, says: str = "") -> None:
    """One that complains, if it says something, and leaves its arguments beside it."""
    script = f'#!/bin/sh\necho "$*" > {path}.arguments\necho "{says}" >&2\nexit {int(bool(says))}\n'
    path.write_text(script)
    path.chmod(0o755)


def refusal() -> str:
    with pytest.raises(ConfigError) as refused:
        check_toolchain()
    return refused.value.message


def test_without_triton_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, programs: Path) -> None:
    put_compiler(programs / "gcc")
    monkeypatch.setattr(importlib.util, "find_spec", {}.get)
    assert refusal() == (
        "the kernels for this machine's GPU need Triton, which is not installed: pip install 'pagemesh[gpu]' on Linux"
        + CPU
    )


def test_without_a_compiler_its_packages_are_named() -> None:
    assert refusal() == (
        "Triton needs a C compiler, but finds neither gcc nor clang: install one (Debian and Ubuntu: apt-get install gcc"
        f" libc6-dev), or name one in CC{CPU}"
    )


def test_a_compiler_that_is_named_and_not_there_is_told(
    monkeypatch: pytest.MonkeyPatch, programs: Path
) -> None:
    put_compiler(programs / "gcc")
    monkeypatch.setenv("CC", "icx")
    assert refusal().startswith("Triton needs a C compiler, but CC is 'icx', which is no program: ")


@pytest.mark.parametrize(
    "says",
    [
        "<stdin>:1:10: fatal error: Python.h: No such file or directory",
        "<stdin>:1:10: fatal error: 'Python.h' file not found",
    ],
    ids=["gcc", "clang"],
)
def test_without_pythons_headers_their_package_is_named(programs: Path, says: str) -> None:
    put_compiler(programs / "clang", says)
    assert refusal() == (
        f"Triton needs Python's headers, but {programs}/clang finds no Python.h in {HEADERS}: install them (Debian and"
        f" Ubuntu: apt-get install python3-dev){CPU}"
    )


def test_what_a_compiler_says_of_other_headers_is_told(programs: Path) -> None:
    says = f"{HEADERS}/Python.h:12:10: fatal error: stdlib.h: No such file or directory"
    put_compiler(programs / "gcc", says)
    assert refusal() == (
        f"Triton needs a C compiler that works, but {programs}/gcc says {says!r}: {BESIDE}{CPU}"
    )


def test_a_compiler_that_cannot_be_started_is_told(programs: Path) -> None:
    (programs / "gcc").write_text("#!/no/such/shell\n")
    (programs / "gcc").chmod(0o755)
    assert 'gcc says "[Errno 2]' in refusal()


def test_where_all_is_there_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, programs: Path
) -> None:
    put_compiler(programs / "own")
    monkeypatch.setenv("CC", "own")
    check_toolchain()
    arguments = (programs / "own.arguments").read_text()
    assert arguments == f"-fsyntax-only -I{HEADERS} -x c -\n"


def test_a_worker_with_a_gpu_looks_before_it_loads_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda, "visible_capability", lambda: (9, 0))
    with pytest.raises(ConfigError, match="neither gcc nor clang"):
        load_engine(
            ModelConfig("/no/such/model"), CacheConfig(), SchedulerConfig(), HardwareConfig()
        )
