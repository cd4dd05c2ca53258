"""The compose files by themselves: valid, with flags that the processes take, and as the images are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagemesh.cli.arguments import parse
from pagemesh.cli.main import COMMANDS
from tests.hygiene.test_images import DOCKERFILES
from tests.hygiene.tree import ROOT

BASE = ROOT / "docker-compose.yml"
FILES = [BASE, *sorted((ROOT / "deploy/compose").glob("*.yml"))]
PROMETHEUS = ROOT / "deploy/observability/prometheus"
PARTS = (
    "gateway",
    "router-0",
    "router-1",
    "prefill-0",
    "prefill-1",
    "decode-0",
    "decode-1",
    "kvstore",
)
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def services(path: Path, **given: str) -> dict[str, Any]:
    """Of one file, with these variables in place, and the defaults of the others."""
    text = VARIABLE.sub(lambda match: given.get(match[1]) or match[2] or "", path.read_text())
    loaded: dict[str, Any] = yaml.safe_load(text)["services"]
    return loaded


def role_of(part: str) -> str:
    return part.partition("-")[0]


def entry_point(role: str) -> list[str]:
    """The image's own."""
    found = re.search(r"^ENTRYPOINT (.*)$", DOCKERFILES[role].read_text(), re.MULTILINE)
    assert found is not None
    words: list[str] = json.loads(found[1])
    return words


def name_of(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_is_valid_by_the_compose_specification(path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run(
        [*command, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_part_takes_the_flags_that_it_is_given(path: Path, part: str) -> None:
    role = role_of(part)
    above = services(path).get(part, {})
    program, command, *flags = above.get("entrypoint", entry_point(role))
    assert (program, command) == ("pagemesh", role)
    flags += above.get("command", services(BASE)[part]["command"])
    parse(COMMANDS[role].settings, "test", "", flags)


@pytest.mark.parametrize(("given", "told"), [("", None), ("int4", "int4")])
def test_all_workers_quantise_alike(given: str, told: str | None) -> None:
    found = services(BASE, PAGEMESH_QUANTIZATION=given)
    for part in ("prefill-0", "prefill-1", "decode-0", "decode-1"):
        command = found[part]["command"]
        settings = parse(COMMANDS[role_of(part)].settings, "test", "", command)
        assert settings.model.quantization == told, part


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("path", FILES[1:], ids=name_of)
def test_an_overlay_keeps_what_the_image_starts_with(path: Path, part: str) -> None:
    entry = services(path).get(part, {}).get("entrypoint")
    own = entry_point(role_of(part))
    assert entry is None or entry[: len(own)] == own


@pytest.mark.parametrize("part", PARTS)
def test_stopping_takes_longer_than_what_runs_may_take(part: str) -> None:
    described = services(BASE)[part]
    role = role_of(part)
    settings = parse(COMMANDS[role].settings, "test", "", described["command"])
    grace = settings.grace_period if role == "gateway" else settings.server.grace_period
    assert float(described["stop_grace_period"].removesuffix("s")) >= grace + 5


def whole_services() -> dict[str, Any]:
    """Each where it is described first, and not only changed."""
    return {
        name: service
        for path in FILES
        for name, service in services(path).items()
        if "image" in service and (path == BASE or name not in services(BASE))
    }


def test_every_part_is_limited_and_may_do_little() -> None:
    for name, service in whole_services().items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert {"cpus", "mem_limit", "pids_limit"} <= set(service), name
        # Where Grafana writes besides its volume depends on its plugins.
        assert name == "grafana" or service["read_only"] is True, name
    for part in PARTS:
        assert services(BASE)[part]["build"]["dockerfile"].endswith("Dockerfile"), part


def test_nothing_waits_for_what_has_no_health() -> None:
    known = whole_services()
    for path in FILES:
        for name, service in services(path).items():
            for other, wanted in service.get("depends_on", {}).items():
                if wanted["condition"] == "service_healthy":
                    assert other in PARTS or "healthcheck" in known[other], f"{name}: {other}"


@pytest.mark.parametrize("part", PARTS)
def test_overlays_do_not_undo_each_other(part: str) -> None:
    """What replaces instead of adding is said of a part in one of them at most."""
    for key in ("entrypoint", "command", "healthcheck", "user"):
        saying = [path.name for path in FILES[1:] if key in services(path).get(part, {})]
        assert len(saying) <= 1, f"{key} in {saying}"


def test_prometheus_reads_the_same_parts_with_tls_and_without() -> None:
    plain, secured = (
        yaml.safe_load((PROMETHEUS / name).read_text())
        for name in ("prometheus.yml", "prometheus-tls.yml")
    )
    names = [
        name
        for job in secured.pop("scrape_configs")
        for found in job["dns_sd_configs"]
        for name in found["names"]
    ]
    (job,) = plain.pop("scrape_configs")
    assert names == job["dns_sd_configs"][0]["names"] == list(PARTS)
    assert secured == plain


def test_the_guide_names_every_variable_with_its_default() -> None:
    guide = (ROOT / "docs/deployment/compose.md").read_text()
    found = dict.fromkeys(
        match[1] for path in FILES for match in VARIABLE.finditer(path.read_text())
    )
    # Of builds on machines that cannot reach PyTorch's index.
    minor = {"TORCH_INDEX", "PIP_TRUSTED_HOST"}
    assert [name for name in found if name not in guide and name not in minor] == []
    for match in VARIABLE.finditer(BASE.read_text()):
        if match[1] not in minor and match[2]:
            assert f"`{match[2]}`" in guide, match[0]


def test_only_this_machine_reaches_a_mesh_without_keys() -> None:
    for path in FILES:
        for name, service in services(path).items():
            for port in service.get("ports", ()):
                assert str(port).startswith("127.0.0.1:"), f"{path.name}: {name}"


def test_mounted_files_of_the_repository_are_there() -> None:
    for path in FILES:
        for service in services(path).values():
            for volume in service.get("volumes", ()):
                source = str(volume).partition(":")[0]
                assert not source.startswith(".") or (ROOT / source).exists(), volume
