"""Two tenants, their keys, and the file that names them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pagemesh.router.tenants.keys import hash_of
from tests.contract.http_answers import Answer
from tests.contract.router_harness import Mesh

ACME, OTHER, WRONG = "pm-acme-0123456789abc", "pm-other-0123456789abc", "pm-wrong-0123456789abc"
PROMPT = list(range(10, 80))
"""Four full blocks and six tokens."""
BODY = {"prompt": PROMPT, "max_tokens": 2}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def key_file(path: Path, **tenants: dict[str, Any]) -> None:
    """Have the file name these tenants, with these fields beside their keys."""
    keys = {"acme": ACME, "other": OTHER}
    content = {name: {"keys": [hash_of(keys[name])], **tenants[name]} for name in tenants}
    replace(path, json.dumps({"tenants": content}))


def replace(path: Path, text: str) -> None:
    """As editors and Kubernetes do: by another file."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def error_of(answer: Answer) -> dict[str, Any]:
    error = answer.json()["error"]
    assert isinstance(error, dict)
    return error


def refusals(mesh: Mesh, reason: str) -> float | None:
    registry = mesh.router._metrics.registry
    return registry.get_sample_value("pagemesh:requests_refused_total", {"reason": reason})
