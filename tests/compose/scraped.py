"""What a mesh's Prometheus has read."""

from __future__ import annotations

import json
import time
import urllib.parse
from typing import Any

from tests.compose.compose_mesh import ComposeMesh

_NUM_PARTS = 8
_DEADLINE_S = 60


def query(mesh: ComposeMesh, expression: str) -> list[Any]:
    """Asked from within Prometheus' own network."""
    url = f"http://prometheus:9090/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    program = (
        f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=10).read().decode())"
    )
    answer = json.loads(mesh.execute("router-0", "python", "-c", program))
    found: list[Any] = answer["data"]["result"]
    return found


def wait_until_all_are_scraped(mesh: ComposeMesh) -> None:
    """Every part, under the name of its kind, and nothing else."""
    deadline = time.monotonic() + _DEADLINE_S
    while len(up := query(mesh, 'up{job="pagemesh"} == 1')) < _NUM_PARTS:
        assert time.monotonic() < deadline, up
        time.sleep(1)
    assert [each["metric"] for each in query(mesh, "up == 0")] == []
    for each in up:
        instance, component = each["metric"]["instance"], each["metric"]["component"]
        assert instance.startswith(component)
