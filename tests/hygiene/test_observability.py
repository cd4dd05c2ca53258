"""What is generated of the metrics' declarations is what they say now."""

from __future__ import annotations

import ast

from pagemesh.telemetry.metrics.transfer import KV_REASONS
from tests.hygiene.tree import ROOT, sources, syntax
from tools import observability

KV_CODE = (
    ROOT / "src/pagemesh/kv_transfer",
    ROOT / "src/pagemesh/worker",
    ROOT / "src/pagemesh/engine",
)


def test_pages_rules_and_dashboards_are_up_to_date() -> None:
    assert observability.stale() == [], "run `make observability`"


def test_all_that_can_be_wrong_with_kv_is_declared() -> None:
    raised = {
        keyword.value.value
        for path in sources()
        if any(folder in path.parents for folder in KV_CODE)
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "KvIntegrityError"
        for keyword in node.keywords
        if keyword.arg == "reason" and isinstance(keyword.value, ast.Constant)
    }
    assert len(raised) > 10
    assert raised - set(KV_REASONS) == set()
