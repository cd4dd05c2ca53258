"""Metrics are declared in one module, used, and named nowhere else by a name that does not exist."""

from __future__ import annotations

import ast
import re

from tests.hygiene.tree import ROOT, files, name_of, sources, syntax

DECLARATIONS = ROOT / "src/pagemesh/telemetry/metrics.py"
METRIC_NAME = re.compile(r"\b(?:vllm|pagemesh):[a-z0-9]+(?:_[a-z0-9]+)+\b")
SERIES_SUFFIX = re.compile(r"_(?:total|bucket|sum|count|created)$")
METRIC_CLASSES = {"Counter", "Gauge", "Histogram", "Summary", "Info", "Enum"}


def declared() -> dict[str, str]:
    """Metric name by the constant that declares it."""
    found = {}
    for statement in syntax(DECLARATIONS).body:
        match statement:
            case ast.AnnAssign(
                target=ast.Name(id=constant),
                value=ast.Call(func=ast.Name(id=kind), args=[ast.Constant(value=str(name)), *_]),
            ) if kind.endswith("Spec"):
                found[constant] = name
    return found


def used_names(tree: ast.Module) -> set[str]:
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_only_declared_names_are_used() -> None:
    names = set(declared().values())
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
        if isinstance(node, ast.ImportFrom) and node.module == "prometheus_client"
        for alias in node.names
        if alias.name in METRIC_CLASSES
    }
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call.id for call in calls if isinstance(call, ast.Name) and call.id in imported]


def test_metrics_are_made_from_declarations_alone() -> None:
    assert set(made_metrics(syntax(DECLARATIONS))) == {"Counter", "Gauge", "Histogram"}
    makers = {name_of(path): made_metrics(syntax(path)) for path in sources()}
    assert [path for path, made in makers.items() if made] == [name_of(DECLARATIONS)]


def test_every_declared_metric_is_used_and_declared_once() -> None:
    metrics = declared()
    assert len(metrics) > 10
    assert len(set(metrics.values())) == len(metrics)
    ours = [path for path in sources() if path != DECLARATIONS and "tests/" not in name_of(path)]
    used = {name for path in ours for name in used_names(syntax(path))}
    assert sorted(set(metrics) - used) == []
