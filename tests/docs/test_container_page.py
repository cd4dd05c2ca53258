"""The Deployments of the page about one container: what they start is served, and their probes find it."""

from __future__ import annotations

import shlex
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from pagemesh.cli import serve
from pagemesh.cli.main import COMMANDS, main
from pagemesh.cli.up.memory import Fit
from tests.docs.blocks import all_blocks
from tests.hygiene.test_images import WHOLE, stages
from tests.hygiene.tree import ROOT

PAGE = "docs/deployment/container.md"


def containers() -> list[dict[str, Any]]:
    """Of the page's Deployments."""
    texts = [block.text for block in all_blocks() if block.document == PAGE]
    found = [yaml.safe_load(text) for text in texts if text.startswith("apiVersion: apps/v1")]
    return [each["spec"]["template"]["spec"]["containers"][0] for each in found]


def started_by(container: dict[str, Any]) -> list[str]:
    """The arguments of `pagemesh` in the image."""
    if "command" not in container:
        # The image's entry point.
        return ["serve", *container["args"]]
    assert container["command"] == ["/bin/sh", "-c"]
    program, *arguments = shlex.split(container["args"][0])
    assert program == "pagemesh"
    return arguments


def test_deployments_for_one_server_start_a_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WHOLE.parent == ROOT / "deploy/serve"
    assert 'ENTRYPOINT ["pagemesh", "serve"]' in stages("whole")[""]
    started: list[Any] = []
    monkeypatch.setitem(sys.modules, COMMANDS["serve"].module, SimpleNamespace(run=started.append))
    monkeypatch.setattr(serve, "visible_gpus", tuple)
    monkeypatch.setattr(serve, "fit_machine", lambda *_: Fit())
    monkeypatch.setenv("PAGEMESH_HOST", "0.0.0.0")
    kinds = set()
    for container in containers():
        assert main(started_by(container)) == 0
        config = started.pop()
        assert config.host == "0.0.0.0"
        assert container["ports"] == [{"containerPort": config.port}]
        probes = {name: each for name, each in container.items() if name.endswith("Probe")}
        assert {"livenessProbe", "readinessProbe"} <= probes.keys()
        for probe in probes.values():
            assert probe["httpGet"] == {"path": "/health", "port": config.port}
        kinds.add("command" in container)
    assert kinds == {True, False}
