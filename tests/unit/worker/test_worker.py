"""What a worker announces, and how its process is set up."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import Any

import pytest

from pagemesh.config import MemberConfig, ModelConfig, ServerConfig, WorkerConfig
from pagemesh.core.engine import EngineInfo
from pagemesh.core.kv import KvLayout
from pagemesh.errors import ConfigError
from pagemesh.v1 import types_pb2
from pagemesh.worker import process
from pagemesh.worker.process import prepare_environment
from pagemesh.worker.worker import advertised, check_advertised, describe_worker

ENGINE = EngineInfo("digest", KvLayout.uniform(16, 4, 2, 64, "bfloat16"), 100, 2048, 8)
ENGINE = replace(ENGINE, arithmetic="cpu-fma-bfloat16")


def make_config(**member: Any) -> WorkerConfig:
    return WorkerConfig(model=ModelConfig(model="models/demo"), member=MemberConfig(**member))


def test_a_worker_is_named_after_its_role_and_address() -> None:
    info = describe_worker(make_config(), "prefill", "127.0.0.1:7001", ENGINE)
    assert info.worker_id == "prefill-127.0.0.1-7001"
    assert info.role == types_pb2.WORKER_ROLE_PREFILL
    assert info.address == "127.0.0.1:7001"
    assert info.model_name == "demo"
    assert info.model_fingerprint == "digest"
    assert info.arithmetic == "cpu-fma-bfloat16"
    assert info.kv_layout.dtype == "bfloat16"
    assert (info.block_count, info.max_model_len, info.max_num_seqs) == (100, 2048, 8)
    assert not info.forgets_prefixes


def test_a_worker_says_that_it_finds_no_prompt_again() -> None:
    engine = replace(ENGINE, caches_prefixes=False)
    assert describe_worker(make_config(), "decode", "127.0.0.1:7001", engine).forgets_prefixes


def test_a_worker_says_how_its_weights_are_quantised() -> None:
    engine = replace(ENGINE, quantization="int4")
    assert describe_worker(make_config(), "decode", "127.0.0.1:7001", engine).quantization == "int4"


def test_settings_override_name_and_address() -> None:
    config = make_config(worker_id="decode-0", advertise="decode-0.mesh:7001")
    info = describe_worker(config, "decode", "0.0.0.0:7001", ENGINE)
    assert (info.worker_id, info.address) == ("decode-0", "decode-0.mesh:7001")
    assert info.role == types_pb2.WORKER_ROLE_DECODE


def test_a_later_start_has_a_greater_epoch() -> None:
    first = describe_worker(make_config(), "decode", "127.0.0.1:7001", ENGINE)
    second = describe_worker(make_config(), "decode", "127.0.0.1:7001", ENGINE)
    assert second.epoch > first.epoch > 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_others_cannot_reach_is_refused(host: str) -> None:
    config = WorkerConfig(
        model=ModelConfig(model="models/demo"),
        member=MemberConfig(kvstore="kvstore:7000"),
        server=ServerConfig(host=host),
    )
    with pytest.raises(ConfigError, match="--advertise"):
        check_advertised(config)


def test_a_worker_is_named_after_the_address_that_others_use() -> None:
    info = describe_worker(make_config(advertise="10.0.0.7:9000"), "decode", "0.0.0.0:9000", ENGINE)
    assert info.worker_id == "decode-10.0.0.7-9000"


def answers(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Have the machine's name stand for these."""
    found = [(0, 0, 0, "", (host, 0)) for host in hosts]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [(("127.0.1.1", "172.18.0.3"), "172.18.0.3:9000"), (("::1", "fd00::3"), "[fd00::3]:9000")],
    ids=("IPv4", "IPv6"),
)
def test_auto_advertises_what_the_machines_name_stands_for(
    hosts: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, *hosts)
    assert advertised(MemberConfig(advertise="auto"), "0.0.0.0:9000") == expected


def test_auto_is_refused_where_the_name_stands_for_this_machine_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers(monkeypatch, "127.0.1.1")
    with pytest.raises(ConfigError, match=r"--advertise is 'auto'.*give host:port"):
        check_advertised(make_config(advertise="auto"))


def test_threads_are_as_many_as_the_container_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "unset")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(process, "core_limit", lambda: 3)
    prepare_environment(0)
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_threads_do_not_spin_and_are_as_many_as_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "unset")
    prepare_environment(3)
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert os.environ["KMP_BLOCKTIME"] == "0"
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert os.environ["MKL_NUM_THREADS"] == "3"


def test_all_cores_are_used_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "unset")
    prepare_environment(0)
    assert os.environ["OMP_NUM_THREADS"] == "unset"
