"""The one distribution holds every package once, and all places that list the package roots agree."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections import Counter
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

from tests.hygiene.tree import ROOT, files, name_of, package_roots
from tests.support.ports import free_port


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def expected_roots() -> list[str]:
    return [root.as_posix() for root in package_roots()]


def test_hatch_lists_every_root_for_editable_installs() -> None:
    assert sorted(pyproject()["tool"]["hatch"]["build"]["dev-mode-dirs"]) == expected_roots()


def test_hatch_lists_every_root_for_the_wheel() -> None:
    packages = pyproject()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(packages) == [f"{root}/pagemesh" for root in expected_roots()]


def test_mypy_sees_every_root() -> None:
    prefix = "$MYPY_CONFIG_FILE_DIR/"
    listed = [path.removeprefix(prefix) for path in pyproject()["tool"]["mypy"]["mypy_path"]]
    assert sorted(listed) == expected_roots()


def test_make_lint_checks_every_root() -> None:
    line = re.search(r"^ROOTS\s*:=\s*(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line is not None
    assert sorted(line[1].split()) == expected_roots()


def test_one_root_alone_has_an_init_file() -> None:
    # transformers imports a top-level package called `kernels` when it finds one. Of several __init__.py in portions
    # of `pagemesh`, the first on the path would be the only one; that of `src` finds the other portions.
    folders = ["services", "kernels", *(f"{root}/pagemesh" for root in expected_roots())]
    having = [folder for folder in folders if (ROOT / folder / "__init__.py").exists()]
    assert having == ["src/pagemesh"]


def test_what_the_package_exports_is_loaded_when_it_is_used() -> None:
    program = """
import sys
import pagemesh, pagemesh.router, pagemesh.kernels
assert {"torch", "grpc", "numpy"}.isdisjoint(sys.modules)
from pagemesh import LLM, SamplingParams
from pagemesh.llm import LLM as same
assert LLM is same and "LLM" in dir(pagemesh) and not hasattr(pagemesh, "LLMs")
"""
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=60)


def test_every_package_below_the_namespace_has_an_init_file() -> None:
    folders = {
        path.parent
        for root in expected_roots()
        for path in (ROOT / root / "pagemesh").rglob("*.py")
    }
    namespaces = {ROOT / root / "pagemesh" for root in expected_roots()}
    generated = {ROOT / "src/pagemesh/v1"}
    bare = [
        name_of(folder)
        for folder in folders - namespaces - generated
        if not (folder / "__init__.py").exists()
    ]
    assert sorted(bare) == []


def test_test_folders_are_no_packages_and_their_files_have_unique_names() -> None:
    ours = [path for path in files(".py") if "tests" in path.relative_to(ROOT).parts]
    assert [name_of(path) for path in ours if path.name == "__init__.py"] == []
    names = Counter(path.name for path in ours if path.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [wheel] = folder.glob("*.whl")
    return wheel


def test_the_wheel_holds_every_module_once(wheel: Path) -> None:
    held = Counter(zipfile.ZipFile(wheel).namelist())
    assert [name for name, count in held.items() if count > 1] == []
    modules = {
        path.relative_to(ROOT / root).as_posix()
        for root in expected_roots()
        for path in files(".py", ".pyi")
        if path.is_relative_to(ROOT / root / "pagemesh")
    }
    assert modules - set(held) == set()
    assert "pagemesh/py.typed" in held


def test_the_wheel_holds_what_is_loaded_of_the_demo_model_and_stays_small(wheel: Path) -> None:
    prefix = "pagemesh/models/demo/"
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(prefix)}
    model = ["model.safetensors", "config.json", "generation_config.json"]
    text = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
    assert held == {prefix + name for name in (*model, *text)}
    assert wheel.stat().st_size < 20 * 2**20


@pytest.mark.exhaustive
def test_an_installed_wheel_answers_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    environment, empty = tmp_path / "environment", tmp_path / "empty"
    empty.mkdir()
    venv.create(environment, symlinks=True)
    python = environment / "bin/python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    # The libraries of this environment, whose editable install of pagemesh is in a .pth file, which counts only there.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "-q", "--python", str(python), "install")
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, timeout=120)
    port = free_port()
    with subprocess.Popen(
        [environment / "bin/pagemesh", "serve", "--port", str(port), "--device", "cpu"],
        cwd=empty,
        stdout=subprocess.PIPE,
        text=True,
    ) as serving:
        try:
            assert serving.stdout is not None
            # It asks itself when all is up; the output ends with a part that fails.
            said = list(itertools.takewhile(lambda line: "Ctrl-C" not in line, serving.stdout))
            assert "< The capital of France is Paris.\n" in said, "".join(said)
            asked = {"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}
            answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=asked, timeout=60)
            assert answer.json()["model"] == "demo"
        finally:
            serving.terminate()
        assert serving.wait(60) == 0
    assert list(empty.iterdir()) == []


def read_pins(path: Path) -> dict[NormalizedName, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return {
        canonicalize_name(pin.name): next(iter(pin.specifier)).version
        for pin in (Requirement(line) for line in lines if line and not line.startswith("#"))
    }


def pinned() -> dict[NormalizedName, str]:
    return read_pins(ROOT / "constraints.txt")


def floors() -> dict[str, Version]:
    """The lowest version of each dependency that may be installed."""
    needs = map(Requirement, pyproject()["project"]["dependencies"])
    return {
        canonicalize_name(need.name): Version(each.version)
        for need in needs
        for each in need.specifier
        if each.operator == ">="
    }


def test_the_lowest_versions_that_may_be_installed_are_those_that_are_tried() -> None:
    tried = read_pins(ROOT / "constraints-lowest.txt")
    lowest = floors()
    assert len(lowest) == len(pyproject()["project"]["dependencies"])
    # Of torch, see there.
    assert lowest.pop("torch") == Version("2.11")
    assert {name: Version(text) for name, text in tried.items()} == lowest


def test_every_direct_dependency_is_pinned_within_its_bounds() -> None:
    project = pyproject()["project"]
    extras = project["optional-dependencies"].values()
    needs = [Requirement(text) for text in sum(extras, project["dependencies"])]
    # An extra may name another one.
    asked = [need for need in needs if need.name != project["name"]]
    pins = pinned()
    assert [need.name for need in asked if canonicalize_name(need.name) not in pins] == []
    outside = [
        f"{need} but {pins[canonicalize_name(need.name)]}"
        for need in asked
        if not need.specifier.contains(pins[canonicalize_name(need.name)], prereleases=True)
    ]
    assert outside == []


def test_every_pin_can_be_installed_on_the_oldest_python_that_we_support() -> None:
    # Debian's is 3.11.2: what wants 3.11.5 cannot be installed there.
    oldest = pyproject()["project"]["requires-python"].removeprefix(">=") + ".0"
    # Where a library brings a finder of its own, what is missing is a KeyError.
    installed = {
        canonicalize_name(dist.name): dist.metadata.json.get("requires_python")
        for dist in distributions()
    }
    wanted = {name: installed.get(name) or "" for name in pinned()}
    assert sum(map(bool, wanted.values())) > len(wanted) / 2
    assert [name for name, text in wanted.items() if oldest not in SpecifierSet(text)] == []
