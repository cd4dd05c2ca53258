"""Who may import what: only an engine loads torch, and only when it is loaded; pure parts load no gRPC."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable

import pytest

from tests.hygiene.tree import ROOT, name_of, package_roots, sources, syntax
from tests.support import late_imports
from tools.symbols import module_of

# Packages and modules of the processes that must stay small.
WITHOUT_TORCH = (
    "bench",
    "cache",
    "cli",
    "client",
    "config",
    "core",
    "decode",
    "engine_process.server",
    "engine_process.client",
    "errors",
    "gateway",
    "gguf",
    "kv_transfer",
    "kvstore",
    "local",
    "membership",
    "models.resolve",
    "prefill",
    "router",
    "rpc",
    "sampling.logits_rules",
    "sampling.logprobs",
    "sampling.params",
    "sampling.structured",
    "scheduler",
    "sim",
    "telemetry",
    "tokenizer",
    "v1",
    "worker",
    "workload",
)
# Plain Python over ids, numbers and text.
WITHOUT_GRPC = (
    "bench",
    "cache",
    "config",
    "core",
    "errors",
    "gguf",
    "kvstore.index",
    "kvstore.memory_index",
    "local",
    "router.openai",
    "router.parsers",
    "router.routing",
    "sampling.params",
    "sampling.structured",
    "scheduler",
    "sim",
    "tokenizer",
    "workload",
)

# Prints, for each module named as an argument, which forbidden package it was the first to load.
PROBE = """
import importlib, sys
names, *modules = sys.argv[1:]
forbidden = set(names.split(","))
for module in modules:
    importlib.import_module(module)
    for name in sorted(forbidden & set(sys.modules)):
        print(f"{module} loads {name}")
        forbidden.remove(name)
"""


def modules_of(part: str) -> list[str]:
    """All modules of a package, or the module itself."""
    relative = part.replace(".", "/")
    found = []
    for root in package_roots():
        portion = ROOT / root / "pagemesh"
        paths = [*(portion / relative).rglob("*.py"), portion / f"{relative}.py"]
        found += [module_of(path) for path in paths if path.is_file()]
    return sorted(name for name in found if not name.endswith("__main__"))


def loaded(forbidden: str, modules: Iterable[str]) -> str:
    completed = subprocess.run(
        [sys.executable, "-c", PROBE, forbidden, *modules], capture_output=True, text=True
    )
    return completed.stdout + completed.stderr


def test_small_processes_never_load_torch() -> None:
    modules = [module for part in WITHOUT_TORCH for module in modules_of(part)]
    assert loaded("torch,transformers", modules) == ""


def test_pure_parts_never_load_grpc() -> None:
    modules = [module for part in WITHOUT_GRPC for module in modules_of(part)]
    assert loaded("grpc,torch", modules) == ""


@pytest.mark.parametrize(
    "process",
    [
        "pagemesh.router.service",
        "pagemesh.prefill.service",
        "pagemesh.decode.service",
        "pagemesh.kvstore.service",
    ],
)
def test_without_traces_nothing_loads_what_records_them(process: str) -> None:
    assert loaded("opentelemetry.sdk,opentelemetry.exporter", [process]) == ""


def test_a_kvstore_loads_no_redis_before_it_is_told_to_use_one() -> None:
    assert loaded("redis", ["pagemesh.kvstore.service"]) == ""


@pytest.mark.parametrize("part", sorted({*WITHOUT_TORCH, *WITHOUT_GRPC}))
def test_every_named_part_exists(part: str) -> None:
    assert modules_of(part)


def test_the_probe_names_who_loads_what() -> None:
    assert (
        loaded("json,grpc", ["json.decoder", "grpc"])
        == "json.decoder loads json\ngrpc loads grpc\n"
    )


def test_files_of_tests_import_what_is_slow_when_they_use_it() -> None:
    late = {getattr(late_imports, name).__name__.split(".")[0] for name in late_imports.__all__}
    found = []
    for path in sources():
        name = name_of(path)
        # Programs run in processes of their own.
        if not name.startswith("tests/") or "/programs/" in name:
            continue
        for statement in syntax(path).body:
            imported: list[str] = []
            if isinstance(statement, ast.Import):
                imported = [alias.name for alias in statement.names]
            elif isinstance(statement, ast.ImportFrom):
                imported = [statement.module or ""]
            found += [f"{name}: {each}" for each in imported if each.split(".")[0] in late]
    assert found == [], "tests.support.late_imports has them"
