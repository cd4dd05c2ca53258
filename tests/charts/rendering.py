"""The chart as the real Helm renders it, and what tests ask of the objects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/pagemesh"
SETUPS = tuple(sorted(CHART.glob("ci/*-values.yaml")))
RELEASE, NAMESPACE = "mesh", "llm"
ROLES = ("gateway", "router", "prefill", "decode", "kvstore")
WORKLOADS = ("Deployment", "StatefulSet", "LeaderWorkerSet")

Object = dict[str, Any]


# libyaml's, where PyYAML was built with it, takes a tenth of the time.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses an object that has a key twice, of which YAML's readers take the one or the other."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Object:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        assert twice == [], f"twice in one object: {twice}"
        found: Object = super().construct_mapping(node, deep)
        return found


@cache
def chart() -> helm.Chart:
    helm.disable_logging()
    return helm.Chart.load(CHART)


def setup_name(path: Path) -> str:
    """What a test's id calls a file of values."""
    return path.name.removesuffix("-values.yaml")


def values_of(path: Path) -> Object:
    loaded: Object = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


@cache
def _texts(values: str, release: str) -> dict[str, str]:
    """What Helm writes, by the templates' names; of the values in JSON, in which they can be compared."""
    texts: dict[str, str] = chart().render(json.loads(values), **json.loads(release))
    return texts


class Rendered:
    """All objects of a release, and its notes."""

    def __init__(self, values: Mapping[str, Any] | None = None, **release: Any) -> None:
        named = {"name": RELEASE, "namespace": NAMESPACE, **release}
        texts = dict(_texts(json.dumps(values or {}), json.dumps(named)))
        self.notes = texts.pop("pagemesh/templates/NOTES.txt", "")
        self.objects: list[Object] = [
            loaded
            for text in texts.values()
            for loaded in yaml.load_all(text, Loader=_Loader)
            if loaded is not None
        ]

    def of_kind(self, kind: str) -> list[Object]:
        return [found for found in self.objects if found["kind"] == kind]

    def one(self, kind: str, name: str) -> Object:
        """The object whose name is this behind the release's."""
        [found] = [
            each for each in self.of_kind(kind) if each["metadata"]["name"].endswith(f"-{name}")
        ]
        return found

    def names(self, kind: str) -> list[str]:
        """Without the release's name before them, sorted."""
        prefix = f"{RELEASE}-pagemesh"
        whole = (each["metadata"]["name"] for each in self.of_kind(kind))
        return sorted(name.removeprefix(prefix).removeprefix("-") for name in whole)

    def workloads(self) -> Iterator[tuple[str, Object, Object]]:
        """(role, workload, its pod template) of all processes of ours."""
        for found in self.objects:
            role = found["metadata"]["labels"]["app.kubernetes.io/component"]
            if found["kind"] in WORKLOADS and role in ROLES:
                yield role, found, template_of(found)

    def pod(self, role: str) -> Object:
        """The pod spec of the only workload of a role."""
        [template] = [template for name, _, template in self.workloads() if name == role]
        spec: Object = template["spec"]
        return spec

    def container(self, role: str) -> Object:
        """The process's container in it."""
        found: Object = self.pod(role)["containers"][0]
        return found

    def flags(self, role: str) -> dict[str, list[str]]:
        """The flags of the process and the values of each; a later one wins."""
        read: dict[str, list[str]] = {}
        for word in self.container(role)["args"]:
            if word.startswith("--"):
                values = read[word] = []
            else:
                values.append(word)
        return read


def template_of(workload: Object) -> Object:
    if workload["kind"] == "LeaderWorkerSet":
        found: Object = workload["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    else:
        found = workload["spec"]["template"]
    return found


@cache
def rendered_setup(path: Path) -> Rendered:
    return Rendered(values_of(path))


def environment(container: Object) -> dict[str, Any]:
    """Each variable with its value, or with where it comes from."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def volumes(pod: Object) -> dict[str, Object]:
    return {each["name"]: each for each in pod["volumes"]}


def mounts(container: Object) -> dict[str, Object]:
    return {each["mountPath"]: each for each in container["volumeMounts"]}
