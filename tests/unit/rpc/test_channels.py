"""The service config that every channel uses."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from pagemesh.rpc.channels import service_config

ROOT = Path(__file__).resolve().parents[3]
METHODS = [name for entry in json.loads(service_config())["methodConfig"] for name in entry["name"]]
RETRYABLE = {
    ("pagemesh.v1.KvStore", "Register"),
    ("pagemesh.v1.KvStore", "Snapshot"),
    ("pagemesh.v1.Inference", "Embed"),
    ("pagemesh.v1.Inference", "Tokenize"),
    ("pagemesh.v1.Inference", "Detokenize"),
    ("pagemesh.v1.Inference", "ListModels"),
}


def test_the_packaged_copy_is_the_one_beside_the_protos() -> None:
    source = ROOT / "protos/pagemesh/v1/service_config.json"
    assert service_config() == source.read_text("utf-8")


@pytest.mark.parametrize("name", METHODS, ids=lambda name: "/".join(name.values()))
def test_every_named_method_exists(name: dict[str, str]) -> None:
    package, _, service = name["service"].rpartition(".")
    module = {"KvTransfer": "kv_transfer"}.get(service, service.lower())
    descriptor = import_module(f"{package}.{module}_pb2").DESCRIPTOR.services_by_name[service]
    assert "method" not in name or name["method"] in descriptor.methods_by_name


def test_only_what_may_run_twice_is_retried_and_only_when_unavailable() -> None:
    retried = set()
    for entry in json.loads(service_config())["methodConfig"]:
        if "retryPolicy" in entry:
            assert entry["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]
            retried |= {(name["service"], name["method"]) for name in entry["name"]}
    assert retried == RETRYABLE
