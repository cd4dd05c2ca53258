"""Images are alike where they should be, and install what their processes import."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.hygiene.test_imports import modules_of
from tests.hygiene.test_packaging import pyproject
from tests.hygiene.tree import ROOT

DOCKERFILES = {
    "gateway": ROOT / "gateway/Dockerfile",
    **{
        name: ROOT / f"services/{name}/Dockerfile"
        for name in ("router", "prefill", "decode", "kvstore")
    },
}
WHOLE = ROOT / "deploy/serve/Dockerfile"
"""Of a mesh in one container."""

REQUIREMENTS = {
    "gateway": ROOT / "gateway/requirements.txt",
    "router": ROOT / "services/router/requirements.txt",
    "prefill": ROOT / "services/requirements-worker.txt",
    "decode": ROOT / "services/requirements-worker.txt",
    "kvstore": ROOT / "services/kvstore/requirements.txt",
}
# What an image runs besides its own package.
SHARED = {
    "gateway": ("cli.main", "cli.health", "cli.certificates"),
    "router": ("cli.main", "cli.health", "models.hub", "telemetry.otlp"),
    "prefill": ("cli.main", "cli.health", "models.hub", "loading.engine", "telemetry.otlp"),
    "decode": ("cli.main", "cli.health", "models.hub", "loading.engine", "telemetry.otlp"),
    "kvstore": ("cli.main", "cli.health", "cli.certificates", "telemetry.otlp"),
}

EXPORTERS = tuple(
    f"opentelemetry.exporter.otlp.proto.{protocol}.trace_exporter" for protocol in ("grpc", "http")
)
"""What `telemetry.otlp` loads once the protocol is known."""

# For each list of distributions and modules: imports the modules where nothing can be found but the standard library,
# pagemesh, and these distributions with what they require. Prints for each list what went wrong.
PROBE = """
import importlib, importlib.metadata as metadata, json, os, re, sys, traceback
from packaging.requirements import Requirement
canonical = lambda name: re.sub(r"[-_.]+", "-", name).lower()
owners = {top: {canonical(each) for each in found} for top, found in metadata.packages_distributions().items()}

# Of top-level packages that several distributions share, whose each module is.
shared = {}
for top, found in owners.items():
    for owner in found if len(found) > 1 else ():
        for file in metadata.files(owner) or ():
            if file.suffix == ".py" and file.parts[0] == top:
                module = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
                shared.setdefault(module, set()).add(owner)

def with_what_they_require(names):
    allowed, waiting = set(), [*names, "pagemesh"]
    while waiting:
        name = canonical(waiting.pop())
        if name in allowed:
            continue
        allowed.add(name)
        try:
            required = metadata.requires(name) or () if name != "pagemesh" else ()
        except metadata.PackageNotFoundError:
            continue
        for text in required:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return allowed

class Absent:
    def __init__(self, allowed):
        self.allowed = allowed

    def find_spec(self, name, path=None, target=None):
        owner = shared.get(name) or owners.get(name.partition(".")[0])
        if owner and not owner & self.allowed:
            raise ModuleNotFoundError(f"{name} is of {', '.join(sorted(owner))}, which is not installed", name=name)

def import_with(names, modules):
    allowed = with_what_they_require(names)
    sys.meta_path.insert(0, Absent(allowed))
    for name in list(sys.modules):
        if owners.get(name.partition(".")[0], allowed).isdisjoint(allowed):
            del sys.modules[name]
    for module in modules:
        importlib.import_module(module)

def wrong_with(names, modules):
    ours, theirs = os.pipe()
    if os.fork() == 0:
        wrong = "it ended early"
        try:
            import_with(names, modules)
            wrong = ""
        except BaseException:
            wrong = traceback.format_exc()
        finally:
            os.write(theirs, wrong.encode()[-60_000:])
            os._exit(0)
    os.close(theirs)
    with open(ours) as told:
        wrong = told.read()
    _, status = os.wait()
    return wrong or (f"it ended with status {status}" if status else "")

print(json.dumps([wrong_with(*each) for each in json.load(sys.stdin)]))
"""


def stages(name: str) -> dict[str, str]:
    """The instructions of each stage, by its name; the last one has none."""
    path = {**DOCKERFILES, "whole": WHOLE}[name]
    text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
    parts = re.split(r"^(?=FROM )", text, flags=re.MULTILINE)[1:]
    return {
        (match[1] if (match := re.match(r"FROM \S+ AS (\w+)", part)) else ""): part
        for part in parts
    }


def requirements(name: str) -> list[str]:
    return listed(REQUIREMENTS[name])


def listed(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("stage", ["base", "build", "installed"])
def test_all_images_begin_alike(stage: str) -> None:
    assert len({stages(name)[stage] for name in (*DOCKERFILES, "whole")}) == 1


def test_both_kinds_of_worker_share_all_layers() -> None:
    prefill, decode = stages("prefill"), stages("decode")
    assert prefill["dependencies"] == decode["dependencies"]
    for told in ("LABEL", "HEALTHCHECK", "ENTRYPOINT"):
        assert prefill[""].index(told) > prefill[""].index("WORKDIR")
    assert (
        prefill[""].replace("prefill", "decode").split("LABEL")[0] == decode[""].split("LABEL")[0]
    )


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_runs_its_process_as_nobody_special(name: str) -> None:
    last = stages(name)[""]
    assert "\nUSER 65532:65532\n" in last
    assert f'ENTRYPOINT ["pagemesh", "{name}"' in last
    assert f'title="pagemesh {name}"' in last
    assert "HEALTHCHECK" in last
    assert f"-f {DOCKERFILES[name].relative_to(ROOT)} " in DOCKERFILES[name].read_text()


def test_the_demo_model_is_where_one_is_loaded_and_once() -> None:
    wheels_own = "/opt/pagemesh/lib/python3*/site-packages/pagemesh/models/demo"
    for name in (*DOCKERFILES, "whole"):
        assert f"rm -r {wheels_own}\n" in stages(name)["installed"]
        copies = stages(name)[""].count("COPY models/demo /opt/pagemesh/models/demo\n")
        assert copies == (name not in ("gateway", "kvstore"))


@pytest.mark.parametrize("name", DOCKERFILES)
def test_versions_are_the_projects(name: str) -> None:
    assert f"ARG VERSION={pyproject()['project']['version']}\n" in stages(name)[""]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_installs_dependencies_of_the_project_alone(name: str) -> None:
    project = pyproject()["project"]
    known = [*project["dependencies"], *project["optional-dependencies"]["transformers"]]
    assert set(requirements(name)) <= {Requirement(each).name for each in known}
    assert requirements(name) == sorted(requirements(name))
    assert ("torch" in requirements(name)) == (name in ("prefill", "decode"))


@pytest.fixture(scope="module")
def missing() -> dict[Path, str]:
    """By files of requirements, what the processes of their images miss."""
    modules: dict[Path, list[str]] = {}
    for name, path in REQUIREMENTS.items():
        own = [module for module in modules_of(name) if not module.endswith(".__main__")]
        shared = [f"pagemesh.{module}" for module in SHARED[name]]
        shared += EXPORTERS if "telemetry.otlp" in SHARED[name] else ()
        modules.setdefault(path, []).extend([*shared, *own])
    asked = [(listed(path), each) for path, each in modules.items()]
    command = [sys.executable, "-c", PROBE]
    found = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 0, found.stderr
    return dict(zip(modules, json.loads(found.stdout), strict=True))


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_installs_all_that_its_process_imports(
    name: str, missing: dict[Path, str]
) -> None:
    assert not missing[REQUIREMENTS[name]], missing[REQUIREMENTS[name]]


def test_the_image_of_a_whole_mesh_has_what_all_others_have() -> None:
    text = WHOLE.with_name("requirements.txt").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines == sorted({each for name in DOCKERFILES for each in requirements(name)})


def test_the_image_of_a_whole_mesh_takes_the_place_of_a_server() -> None:
    last = stages("whole")[""]
    # No subcommand, all addresses, and the cache where guides mount it.
    assert 'ENTRYPOINT ["pagemesh", "serve"]' in last
    assert "PAGEMESH_HOST=0.0.0.0" in last
    assert "HF_HOME=/root/.cache/huggingface" in last
    assert "EXPOSE 8000" in last
    assert "USER" not in last
    assert f"ARG VERSION={pyproject()['project']['version']}\n" in last
