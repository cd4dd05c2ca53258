"""The contract is documented and keeps Buf's rules, and the committed stubs are made from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.version import Version

from tests.hygiene.test_packaging import floors
from tests.hygiene.tree import ROOT
from tools import protos


def test_stubs_equal_a_regeneration() -> None:
    assert protos.stale_stubs() == []


def test_stubs_run_with_the_oldest_libraries_that_can_be_installed() -> None:
    stub = (ROOT / "src/pagemesh/v1/types_pb2.py").read_text(encoding="utf-8")
    caller = (ROOT / "src/pagemesh/v1/types_pb2_grpc.py").read_text(encoding="utf-8")
    [protobuf] = re.findall(r"^# Protobuf Python Version: (.+)$", stub, re.MULTILINE)
    [grpcio] = re.findall(r"^GRPC_GENERATED_VERSION = '(.+)'$", caller, re.MULTILINE)
    needed = floors()
    assert needed["protobuf"] >= Version(protobuf)
    for name in ("grpcio", "grpcio-health-checking", "grpcio-reflection", "grpcio-status"):
        assert needed[name] == Version(grpcio)


def test_protos_keep_bufs_rules_and_have_a_comment_on_everything() -> None:
    assert protos.buf("lint") == ""
    assert protos.buf("format", "--diff") == ""


def test_a_changed_contract_makes_stubs_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = tmp_path / "pagemesh/v1/types.proto"
    changed.parent.mkdir(parents=True)
    for original in (protos.PROTOS / "pagemesh/v1").glob("*.proto"):
        text = original.read_text(encoding="utf-8")
        (changed.parent / original.name).write_text(text, encoding="utf-8")
    text = changed.read_text(encoding="utf-8")
    changed.write_text(text.replace("max_num_seqs = 10", "max_num_seqs = 99"), encoding="utf-8")
    monkeypatch.setattr(protos, "PROTOS", tmp_path)
    assert protos.stale_stubs() == ["types_pb2.py"]
