"""Metrics are declared in one package, used, and named nowhere else by a name that does not exist."""

from __future__ import annotations

import ast
import re

from tests.hygiene.tree import ROOT, files, name_of, sources, syntax

DECLARATIONS = ROOT / "src/pagemesh/telemetry/metrics"
REGISTRY = DECLARATIONS / "registry.py"
# A name of the tests' own.
PROBES = {"pagemesh:probe"}
METRIC_NAME = re.compile(r"\b(?:vllm|pagemesh):[a-z0-9]+(?:_[a-z0-9]+)+\b")
SERIES_SUFFIX = re.compile(r"_(?:total|bucket|sum|count|created)$")
LIBRARY = "prometheus_client"
METRIC_CLASSES = {"Counter", "Gauge", "Histogram", "Summary", "Info", "Enum"}


def declared() -> dict[str, str]:
    """Metric name by the constant that declares it."""
    found = {}
    for path in sorted(DECLARATIONS.glob("*.py")):
        for statement in syntax(path).body:
            match statement:
                case ast.AnnAssign(
                    target=ast.Name(id=constant),
                    value=ast.Call(func=ast.Name(id=kind), keywords=keywords),
                ) if kind.endswith("Spec"):
                    (name,) = [word.value for word in keywords if word.arg == "name"]
                    assert isinstance(name, ast.Constant)
                    assert constant not in found
                    found[constant] = str(name.value)
    return found


def absent() -> set[str]:
    """vLLM's names of which the catalog says why they are not here."""
    text = (DECLARATIONS / "catalog.py").read_text(encoding="utf-8")
    return set(METRIC_NAME.findall(text))


def used_names(tree: ast.Module) -> set[str]:
    return {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, (ast.Name, ast.Attribute))
    }


def test_only_declared_names_are_used() -> None:
    names = {*declared().values(), *absent(), *PROBES}
    unknown = [
        f"{name_of(path)}: {name}"
        for path in files(".py", ".md", ".json", ".yaml", ".yml", ".lua")
        for name in METRIC_NAME.findall(path.read_text(encoding="utf-8"))
        if name not in names and SERIES_SUFFIX.sub("", name) not in names
    ]
    assert unknown == []


def made_metrics(tree: ast.Module) -> list[str]:
    """Classes of prometheus_client that a module makes metrics from."""
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == LIBRARY
        for alias in node.names
        if alias.name in METRIC_CLASSES
    }
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call.id for call in calls if isinstance(call, ast.Name) and call.id in imported]


def test_metrics_are_made_from_declarations_alone() -> None:
    assert set(made_metrics(syntax(REGISTRY))) == {"Counter", "Gauge", "Histogram"}
    importing = [path for path in sources() if LIBRARY in path.read_text(encoding="utf-8")]
    makers = {name_of(path): made_metrics(syntax(path)) for path in importing}
    assert [path for path, made in makers.items() if made] == [name_of(REGISTRY)]


def test_every_declared_metric_is_used_and_declared_once() -> None:
    metrics = declared()
    assert len(metrics) > 80
    assert len(set(metrics.values())) == len(metrics)
    ours = [
        path
        for path in sources()
        if DECLARATIONS not in path.parents and not name_of(path).startswith(("tests/", "tools/"))
    ]
    used = {name for path in ours for name in used_names(syntax(path))}
    assert sorted(set(metrics) - used) == []
