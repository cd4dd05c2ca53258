"""Every set-up of ci/: linted, rendered, and valid for every Kubernetes that the chart is for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest

from pagemesh import config
from pagemesh.cli.arguments import parse
from tests.charts.kubernetes_schemas import VERSIONS, complaints, is_custom
from tests.charts.rendering import (
    CHART,
    NAMESPACE,
    ROLES,
    SETUPS,
    rendered_setup,
    setup_name,
    template_of,
    values_of,
)

SETTINGS: dict[str, type[Any]] = {
    "gateway": config.GatewayConfig,
    "router": config.RouterConfig,
    "prefill": config.WorkerConfig,
    "decode": config.WorkerConfig,
    "kvstore": config.KvStoreConfig,
}
NEEDS = {"image-volume": "1.31"}
"""Set-ups that an older Kubernetes cannot have."""

IMAGE_ARGUMENTS = {
    role: ["--host", "0.0.0.0", "--port", "8000" if role == "gateway" else "9000"] for role in ROLES
}
"""What the images' entrypoints have in front of the chart's arguments, where a later flag wins."""

each_setup = pytest.mark.parametrize("setup", SETUPS, ids=setup_name)


def is_for(setup: Path, version: str) -> bool:
    needs = NEEDS.get(setup_name(setup), "1.28")
    return int(version.split(".")[1]) >= int(needs.split(".")[1])


@pytest.mark.product(most=5)
@each_setup
def test_a_setup_lints_without_a_word_where_warnings_count(setup: Path) -> None:
    versions = [f"v{version}.0" for version in VERSIONS if is_for(setup, version)]
    for version in (versions[0], versions[-1]):
        report = helm.lint(CHART, values_of(setup), strict=True, kube_version=version)
        said = [each for each in report["messages"] if "icon is recommended" not in each["error"]]
        assert (said, report["errors"]) == ([], [])


@pytest.mark.product(sample=20)
@pytest.mark.parametrize("version", VERSIONS)
@each_setup
def test_every_object_is_valid_for_every_kubernetes(setup: Path, version: str) -> None:
    if not is_for(setup, version):
        pytest.skip(f"image volumes need Kubernetes {NEEDS[setup_name(setup)]}")
    found = [each for one in rendered_setup(setup).objects for each in complaints(one, version)]
    assert found == []


@each_setup
def test_pod_templates_of_custom_resources_are_valid_for_kubernetes(setup: Path) -> None:
    sets = rendered_setup(setup).of_kind("LeaderWorkerSet")
    for each in sets:
        template = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": "group"},
            "template": template_of(each),
        }
        assert [complaints(template, version) for version in VERSIONS] == [[]] * len(VERSIONS)


def test_the_setups_have_every_custom_resource_that_there_is_a_schema_for() -> None:
    kinds = {
        one["kind"] for setup in SETUPS for one in rendered_setup(setup).objects if is_custom(one)
    }
    assert kinds == {
        "Certificate", "GRPCRoute", "HTTPRoute", "InferenceObjective", "InferencePool", "Issuer",
        "LeaderWorkerSet", "PodMonitor", "PrometheusRule", "ScaledObject", "ServiceMonitor",
    }  # fmt: skip


@pytest.mark.product(most=5)
@each_setup
def test_every_process_understands_its_arguments(setup: Path) -> None:
    parsed = set()
    for role, workload, template in rendered_setup(setup).workloads():
        container = template["spec"]["containers"][0]
        words = [
            word.replace("$(POD_IP)", "10.1.2.3").replace(
                "$(POD_NAME)", workload["metadata"]["name"]
            )
            for word in container["args"]
        ]
        words = [word.replace("$(REDIS_PASSWORD)", "secret") for word in words]
        assert [word for word in words if "$(" in word] == []
        settings = parse(SETTINGS[role], f"pagemesh {role}", role, [*IMAGE_ARGUMENTS[role], *words])
        if role == "router":
            assert settings.served.names
        parsed.add(role)
    assert parsed >= {"router", "prefill", "decode", "kvstore"}


@each_setup
def test_what_arguments_name_by_a_variable_is_in_the_environment(setup: Path) -> None:
    for _, _, template in rendered_setup(setup).workloads():
        container = template["spec"]["containers"][0]
        known = {each["name"] for each in container["env"]}
        named = set(re.findall(r"\$\((\w+)\)", " ".join(container["args"])))
        assert named <= known


@each_setup
def test_every_object_is_in_the_namespace_and_says_whose_it_is(setup: Path) -> None:
    for one in rendered_setup(setup).objects:
        labels = one["metadata"]["labels"]
        assert one["metadata"]["namespace"] == NAMESPACE
        assert labels["app.kubernetes.io/instance"] == "mesh"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"


@each_setup
def test_no_two_objects_have_one_name(setup: Path) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in rendered_setup(setup).objects]
    assert len(names) == len(set(names))


@each_setup
def test_every_volume_is_mounted_and_every_mount_has_a_volume(setup: Path) -> None:
    for _, workload, template in rendered_setup(setup).workloads():
        pod = template["spec"]
        containers = [*pod["containers"], *pod.get("initContainers", [])]
        mounted = {each["name"] for one in containers for each in one.get("volumeMounts", [])}
        assert mounted == {each["name"] for each in pod["volumes"]}, workload["metadata"]["name"]
