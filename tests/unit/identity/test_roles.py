from __future__ import annotations

import importlib
import pkgutil

import pytest

import pagemesh.v1
from pagemesh.identity.roles import CALLERS, MeshRole, may_call, roles_of


def _methods() -> set[str]:
    """Every method of every service, as gRPC calls it."""
    methods = set()
    for module in pkgutil.iter_modules(pagemesh.v1.__path__):
        if module.name.endswith("_pb2"):
            descriptor = importlib.import_module(f"pagemesh.v1.{module.name}").DESCRIPTOR
            for service in descriptor.services_by_name.values():
                methods |= {f"/{service.full_name}/{method.name}" for method in service.methods}
    return methods


def test_every_method_has_callers_and_every_entry_a_method() -> None:
    methods = _methods()
    assert len(methods) > 30
    nobodys = {
        method for method in methods if not any(may_call(method, [role]) for role in MeshRole)
    }
    assert nobodys == set()
    named = {method.removeprefix("/") for method in methods}
    assert {
        entry for entry in CALLERS if not any(name.startswith(entry) for name in named)
    } == set()


@pytest.mark.parametrize(
    ("role", "methods"),
    [
        ("gateway", {"Anthropic", "Console", "Inference", "OpenAI", "Process"}),
        ("client", {"Anthropic", "Console", "Inference", "OpenAI"}),
        (
            "router",
            {
                "Decode/Session",
                "KvStore/ListWatchers",
                "KvStore/Lookup",
                "KvStore/Snapshot",
                "KvStore/Watch",
                "Process/Metrics",
            },
        ),
        ("prefill", set()),
        ("decode", {"Prefill/Prefill"}),
        (
            "worker",
            {"KvStore/Publish", "KvStore/Register", "KvTransfer/Fetch", "Peers/Introduce"},
        ),
        ("kvstore", set()),
        ("health", {"Process", "Peers/Reach"}),
    ],
)
def test_a_role_may_call_what_its_work_needs(role: str, methods: set[str]) -> None:
    may = {
        method.removeprefix("/pagemesh.v1.")
        for method in _methods()
        if may_call(method, [MeshRole(role)])
    }
    assert {name if name in methods else name.partition("/")[0] for name in may} == methods


def test_what_stands_in_no_table_may_be_called_by_nobody() -> None:
    assert not may_call("/pagemesh.v1.KvStore/Forget", list(MeshRole))
    assert not may_call("/pagemesh.v1.KvStore", list(MeshRole))
    assert not may_call("/other.OpenAI/Completions", list(MeshRole))


def test_names_that_are_no_roles_mean_nothing() -> None:
    names = ["router.pagemesh", "decode", "decode.pagemesh.example.org", "10.0.0.1", "*.pagemesh"]
    assert roles_of(names) == {MeshRole.ROUTER}
