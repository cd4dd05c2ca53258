"""values.yaml says what every key means, its schema is closed, and the README lists the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import helm_python as helm
import pytest
import yaml

from pagemesh.config import KvCacheDtype, ModelConfig, RoutingPolicy, ServerConfig
from pagemesh.config.engine import QUANTIZATIONS
from pagemesh.config.environment import TracesProtocol
from pagemesh.config.router import OutputPolicy
from pagemesh.config.served import split_gguf
from tests.charts.rendering import CHART, ROOT, SETUPS, chart, setup_name, values_of
from tools import helm_values

OPEN = {
    "#/$defs/asKubernetesHasIt": "affinity, volumes and sources of variables are the user's, as Kubernetes has them",
    "#/properties/global": "Helm puts it there for charts that have this one as a part",
}
"""Objects of the schema that take any key, and why."""


def schema() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return loaded


def nodes(node: Any, path: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        yield path, node
        for key, value in node.items():
            yield from nodes(value, f"{path}/{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from nodes(value, f"{path}/{index}")


def test_every_object_of_the_schema_is_closed() -> None:
    is_open = [
        path
        for path, node in nodes(schema())
        if node.get("type") == "object" and "additionalProperties" not in node
    ]
    assert sorted(is_open) == sorted(OPEN)


def test_a_map_of_the_schema_says_what_its_values_are() -> None:
    assert [
        path for path, node in nodes(schema()) if node.get("additionalProperties") in (True, {})
    ] == []


def test_every_list_of_the_schema_says_what_is_in_it() -> None:
    lists = [(path, node) for path, node in nodes(schema()) if node.get("type") == "array"]
    assert len(lists) > 10
    assert [path for path, node in lists if not node.get("items")] == []


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    if "allOf" in node:
        return resolved(node["allOf"][0])
    if "$ref" in node:
        found: dict[str, Any] = schema()["$defs"][node["$ref"].rsplit("/", 1)[-1]]
        return found
    return node


def paths_of_schema(node: dict[str, Any], path: str = "") -> Iterator[str]:
    node = resolved(node)
    for key, value in node.get("properties", {}).items():
        below = f"{path}.{key}".removeprefix(".")
        yield below
        value = resolved(value)
        if value.get("type") == "array":
            value, below = resolved(value["items"]), f"{below}[]"
        yield from paths_of_schema(value, below)


def test_values_and_schema_have_the_same_keys() -> None:
    documented = {each.path for each in helm_values.read(CHART / "values.yaml")}
    known = set(paths_of_schema(schema()))
    # The workers' keys are documented once; Kubernetes' own objects are Kubernetes' to document.
    kubernetes = (
        "models[].prefill.", "models[].decode.", "resources.", "tolerations[]", "topologySpread[]",
        "extraEnv[]", "extraVolumeMounts[]", "pullSecrets[]", "From[]", "dnsTo[]", "redisTo[]", "tracesTo[]",
        "extraEgress[]", "parentRefs[]", "objectives[]", "global",
    )  # fmt: skip
    assert documented - known == set()
    assert {
        key for key in known - documented if not any(part in key for part in kubernetes)
    } == set()


def values_of_field(config: type[Any], field: str) -> tuple[str, ...]:
    return get_args(get_type_hints(config)[field])


CHOICES: dict[str, tuple[str, ...]] = {
    "logLevel": values_of_field(ServerConfig, "log_level"),
    "logFormat": values_of_field(ServerConfig, "log_format"),
    "models[].dtype": values_of_field(ModelConfig, "dtype"),
    # Nothing is what --quantization says when it is not given.
    "models[].quantization": ("", *QUANTIZATIONS),
    "models[].kvCacheDtype": get_args(KvCacheDtype),
    "router.policy": get_args(RoutingPolicy),
    "router.maxOutputTokensPolicy": get_args(OutputPolicy),
    "tracing.protocol": get_args(TracesProtocol),
}
"""What the processes take for values that become their flags, or variables, as they are."""


@pytest.mark.parametrize("path", CHOICES)
def test_the_schema_has_the_choices_that_the_processes_have(path: str) -> None:
    node = schema()
    for key in path.split("."):
        node = resolved(node["properties"][key.removesuffix("[]")])
        node = resolved(node["items"]) if key.endswith("[]") else node
    assert node["enum"] == list(CHOICES[path])


@pytest.mark.parametrize(
    "repository",
    [
        "org/m:Q4_K_M",
        "org/m:m-Q4_K_M.gguf",
        "org/m:a/b/m.gguf",
        "org/m/m.gguf",
        "org/m/a/m-00001-of-00002.gguf",
        "org/m:",
        "org/m:/m.gguf",
        "org/m:../m.gguf",
        "org/m/../m.gguf",
        "org/m:a:b",
        "org/m:a b",
        "org/m/a",
        "m:Q4_K_M",
        "org/m/m.gguf/",
    ],
)
def test_the_schema_takes_the_gguf_files_of_the_hub_that_the_processes_take(
    repository: str,
) -> None:
    source = {"type": "hub", "repository": repository}
    takes = True
    try:
        chart().validate_schema({"models": [{"name": "m", "source": source}]})
    except helm.HelmValuesError:
        takes = False
    assert takes is (split_gguf(repository) is not None)


def test_every_key_has_a_comment() -> None:
    values = helm_values.read(CHART / "values.yaml")
    assert len(values) > 250
    assert [each.path for each in values if not each.comment] == []


def test_a_key_without_a_comment_is_found() -> None:
    text = "# What it is.\na:\n  b: 1\n  # Another one.\n  c: 2\n"
    assert [each.path for each in helm_values.read_text(text) if not each.comment] == ["a.b"]


def test_the_keys_that_are_read_are_those_that_yaml_has() -> None:
    loaded = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    documented = [each.path for each in helm_values.read(CHART / "values.yaml")]
    assert [path for path in documented if "." not in path] == list(loaded)
    assert [
        path for path in documented if path.startswith("models[].") and path.count(".") == 1
    ] == [f"models[].{key}" for key in loaded["models"][0]]


def test_the_readme_is_what_the_values_say() -> None:
    made = helm_values.readme(CHART)
    assert (CHART / "README.md").read_text(encoding="utf-8") == made, (
        "run: python tools/helm_values.py"
    )


def test_the_defaults_are_allowed_by_the_schema() -> None:
    chart().validate_schema({})


@pytest.mark.parametrize("setup", SETUPS, ids=setup_name)
def test_a_setup_says_what_it_is_for(setup: Any) -> None:
    assert setup.read_text(encoding="utf-8").startswith("# ")
    chart().validate_schema(values_of(setup))


def test_chart_and_images_have_the_version_of_the_distribution() -> None:
    metadata = chart().metadata
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{metadata["appVersion"]}"' in project


def test_the_package_holds_what_an_installation_needs(tmp_path: Any) -> None:
    archive = helm.package(CHART, destination=tmp_path)
    packed = helm.Chart.load(archive)
    assert packed.schema is not None
    assert packed.metadata["kubeVersion"] == ">=1.28.0-0"
    names = {each["name"] for each in [*packed.files, *packed.templates]}
    assert {"README.md", "templates/NOTES.txt", "files/prometheus-adapter.yaml"} <= names
