"""What the suite for a rented GPU lacks there, and the wheels that bring it."""

from __future__ import annotations

import zipfile
from itertools import pairwise
from pathlib import Path

import pytest

from tools.gpu_suite.packages import Lacking, RefusedError, find_lacking, install_missing, wanted
from tools.gpu_suite.wheels import command


def make_wheel(folder: Path, name: str, version: str, *needs: str) -> Path:
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {need}" for need in needs]
    path = folder / f"{stem}-py3-none-any.whl"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def test_what_is_missing_is_named_with_what_brings_it(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"played-one: not in this Python .*make gpu-wheels"):
        install_missing(tmp_path / "site", None, ["played-one>=2", "pytest"])
    with pytest.raises(RefusedError, match="there is no folder of wheels"):
        install_missing(tmp_path / "site", tmp_path / "nowhere", ["pytest"])


def test_what_a_wheel_needs_is_missing_as_well(tmp_path: Path) -> None:
    needs = ("played_two==1.0", "never ; python_version < '3'", "more ; extra == 'all'")
    wheel = make_wheel(tmp_path, "played-one", "2.1", *needs)
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    lacking = find_lacking(site, ["Played_One>=2", "pytest"])
    assert lacking == Lacking(absent=["played-two"], old=[])
    assert find_lacking(site, ["played-one>=3"]).old == ["played-one 2.1"]


@pytest.mark.costly
def test_wheels_bring_what_is_missing(tmp_path: Path) -> None:
    site, wheels = tmp_path / "site", tmp_path / "wheels"
    make_wheel(wheels, "played-one", "2.1", "played_two==1.0")
    make_wheel(wheels, "pytest", "1.0")
    with pytest.raises(RefusedError, match=r"played-two: not in this Python .* nor in"):
        install_missing(site, wheels, ["played-one>=2", "pytest"])
    make_wheel(wheels, "played-two", "1.0")
    assert install_missing(site, wheels, ["played-one>=3", "pytest"]) == ["played-one 2.1"]
    assert sorted(path.name for path in site.glob("*.dist-info")) == [
        "played_one-2.1.dist-info",
        "played_two-1.0.dist-info",
    ]


def test_the_development_environment_lacks_nothing(tmp_path: Path) -> None:
    assert install_missing(tmp_path, None, wanted()) == []


def test_wheels_are_fetched_for_another_python_at_the_tested_versions(tmp_path: Path) -> None:
    words = list(map(str, command(tmp_path, "3.12", ["structlog"], "aarch64")))
    options = [pair for pair in pairwise(words) if pair[0].startswith("-")]
    assert {("--python-version", "3.12"), ("--abi", "cp312"), ("--abi", "abi3")} <= set(options)
    assert {value for name, value in options if name == "--platform"} == {
        f"{name}_aarch64"
        for name in ("manylinux2014", *(f"manylinux_2_{minor}" for minor in (17, 27, 28, 31)))
    }
    constraints = Path(words[words.index("-c") + 1]).read_text()
    assert all(f"\n{name}==" in constraints for name in ("structlog", "llguidance", "protobuf"))
