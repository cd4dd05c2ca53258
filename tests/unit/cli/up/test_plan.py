"""What `pagemesh up` would start, and how cores and ports are shared out."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from pagemesh.cli.arguments import parse
from pagemesh.cli.settings import UpConfig
from pagemesh.cli.up import sharing as gpus
from pagemesh.cli.up.plan import MeshPlan, Stage, make_plan, num_ports
from pagemesh.cli.up.sharing import GpuShare, gpus_for, share_gpus, visible_gpus
from pagemesh.config import (
    CacheConfig,
    ChatConfig,
    GatewayConfig,
    GenerationConfig,
    HardwareConfig,
    HubConfig,
    KvStoreConfig,
    RouterConfig,
    RoutingConfig,
    SchedulerConfig,
    WorkerConfig,
)
from pagemesh.errors import ConfigError

PORTS = range(20000, 21000)


def plan(config: UpConfig, gpus: Sequence[str] = ()) -> MeshPlan:
    return make_plan(config, PORTS[: num_ports(config)], Path("/run/pagemesh"), None, gpus)


def settings_of(plan: MeshPlan, name: str, kind: type) -> object:
    part = next(part for part in plan.parts if part.name == name)
    words = list(part.command)
    return parse(kind, "pagemesh", "", words[words.index("pagemesh.cli") + 2 :])


def test_every_part_that_reads_the_model_knows_its_revision() -> None:
    hub = HubConfig("v2", "/models")
    started = plan(UpConfig(model=("org/model",), hub=hub))
    router = settings_of(started, "router", RouterConfig)
    assert isinstance(router, RouterConfig) and router.hub == hub
    for name in ("prefill-0", "decode-0"):
        worker = settings_of(started, name, WorkerConfig)
        assert isinstance(worker, WorkerConfig) and worker.model.hub == hub


def test_routers_know_the_defaults_of_generation() -> None:
    generation = GenerationConfig("vllm", '{"temperature": 0.5, "max_new_tokens": 9}')
    chat = ChatConfig(default_chat_template_kwargs='{"enable_thinking": false}')
    router = settings_of(plan(UpConfig(generation=generation, chat=chat)), "router", RouterConfig)
    assert isinstance(router, RouterConfig)
    assert (router.generation, router.chat) == (generation, chat)


def test_several_routers_have_numbers_and_the_gateway_knows_them_all() -> None:
    mesh = plan(UpConfig(router=2))
    routers = [part for part in mesh.parts if part.stage is Stage.ROUTER]
    assert [part.name for part in routers] == ["router-0", "router-1"]
    gateway = settings_of(mesh, "gateway", GatewayConfig)
    assert isinstance(gateway, GatewayConfig)
    assert gateway.routers == tuple(part.address for part in routers)
    settings = [settings_of(mesh, part.name, RouterConfig) for part in routers]
    assert len({config.kvstore for config in settings if isinstance(config, RouterConfig)}) == 1
    with pytest.raises(ConfigError, match="--router is 0, but must be at least 1"):
        UpConfig(router=0)


def test_several_kvstores_share_an_index_and_everybody_knows_them_all() -> None:
    mesh = plan(UpConfig(kvstore=2, index="redis://127.0.0.1:6379/1"))
    kvstores = [part for part in mesh.parts if part.stage is Stage.KVSTORE]
    assert [part.name for part in kvstores] == ["kvstore-0", "kvstore-1"]
    for part in kvstores:
        settings = settings_of(mesh, part.name, KvStoreConfig)
        assert isinstance(settings, KvStoreConfig)
        assert settings.index == "redis://127.0.0.1:6379/1"
    addresses = ",".join(part.address for part in kvstores)
    router = settings_of(mesh, "router", RouterConfig)
    assert isinstance(router, RouterConfig) and router.kvstore == addresses
    for name in ("prefill-0", "decode-0"):
        worker = settings_of(mesh, name, WorkerConfig)
        assert isinstance(worker, WorkerConfig) and worker.member.kvstore == addresses


def test_kvstores_that_could_not_know_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--index is 'memory', but must be redis://.* for 2 k"):
        UpConfig(kvstore=2)
    with pytest.raises(ConfigError, match="--kvstore is 0, but must be at least 1"):
        UpConfig(kvstore=0)
    with pytest.raises(ConfigError, match=r"--index is .nowhere., but must be memory"):
        plan(UpConfig(index="nowhere"))


def test_the_parts_and_when_they_are_stopped() -> None:
    parts = plan(UpConfig(prefill=1, decode=2)).parts
    assert sorted((part.stage, part.name) for part in parts) == [
        (Stage.GATEWAY, "gateway"),
        (Stage.ROUTER, "router"),
        (Stage.WORKER, "decode-0"),
        (Stage.WORKER, "decode-1"),
        (Stage.WORKER, "prefill-0"),
        (Stage.KVSTORE, "kvstore"),
    ]
    assert len({part.address for part in parts}) == 6


def test_settings_reach_the_parts() -> None:
    config = UpConfig(
        model=("m/demo",),
        served_model_name=("tiny", "small"),
        model_alias=("chat=tiny",),
        dtype="bfloat16",
        max_model_len=99,
        model_impl="transformers",
        threads=5,
        cache=CacheConfig(block_size=8),
        scheduler=SchedulerConfig(max_num_seqs=3),
        routing=RoutingConfig(policy="round_robin"),
    )
    mesh = plan(config)
    kvstore = settings_of(mesh, "kvstore", KvStoreConfig)
    router = settings_of(mesh, "router", RouterConfig)
    decode = settings_of(mesh, "decode-0", WorkerConfig)
    gateway = settings_of(mesh, "gateway", GatewayConfig)
    assert isinstance(kvstore, KvStoreConfig)
    assert isinstance(router, RouterConfig)
    assert isinstance(decode, WorkerConfig)
    assert isinstance(gateway, GatewayConfig)
    kvstore_address = f"127.0.0.1:{kvstore.server.port}"
    assert (router.model, router.kvstore) == (("m/demo",), kvstore_address)
    assert router.served == config.served
    assert router.routing == config.routing
    assert (decode.model.model, decode.model.served_name) == ("m/demo", "tiny")
    assert (decode.model.dtype, decode.model.max_model_len) == ("bfloat16", 99)
    assert decode.model.model_impl == "transformers"
    assert (decode.cache, decode.scheduler) == (config.cache, config.scheduler)
    assert (decode.member.worker_id, decode.member.kvstore) == ("decode-0", kvstore_address)
    assert decode.model.threads == 3
    assert decode.member.share_kv_memory
    assert gateway.routers == (f"127.0.0.1:{router.server.port}",)


def test_workers_share_their_kv_memory_unless_told_otherwise() -> None:
    mesh = plan(UpConfig(share_kv_memory=False))
    for name in ("prefill-0", "decode-0"):
        worker = settings_of(mesh, name, WorkerConfig)
        assert isinstance(worker, WorkerConfig) and not worker.member.share_kv_memory


def test_no_openmp_thread_of_a_worker_spins() -> None:
    worker = next(part for part in plan(UpConfig(threads=4)).parts if part.name == "prefill-0")
    assert worker.environment == {
        "OMP_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
    }


def test_workers_take_gpus_by_turns_and_share_their_memory() -> None:
    config = UpConfig(prefill=1, decode=2, hardware=HardwareConfig("auto", 0.9, True))
    mesh = plan(config, gpus=("4", "GPU-7"))
    found = {}
    for part in mesh.parts:
        if part.stage is Stage.WORKER:
            settings = settings_of(mesh, part.name, WorkerConfig)
            assert isinstance(settings, WorkerConfig)
            assert settings.hardware.enforce_eager
            share = settings.hardware.gpu_memory_utilization
            found[part.name] = part.environment["CUDA_VISIBLE_DEVICES"], share
        else:
            assert "CUDA_VISIBLE_DEVICES" not in part.environment
    assert found == {"prefill-0": ("4", 0.45), "decode-0": ("GPU-7", 0.9), "decode-1": ("4", 0.45)}


def test_shares_of_a_gpu_are_no_more_than_the_whole() -> None:
    assert [share.utilization for share in gpu_shares(("0",), 7, 0.95)] == [0.135] * 7
    assert [share.gpu for share in gpu_shares(("0", "1", "2"), 4, 0.9)] == ["0", "1", "2", "0"]
    assert share_gpus((), 2, 0.9) == [None, None]


def gpu_shares(gpus: Sequence[str], num_workers: int, utilization: float) -> list[GpuShare]:
    return [share for share in share_gpus(gpus, num_workers, utilization) if share is not None]


def test_a_machine_without_the_driver_has_no_gpus() -> None:
    assert visible_gpus({}, driver="libpagemesh-none.so") == ()
    # A library that is there, but is no driver.
    assert visible_gpus({}, driver="libc.so.6") == ()


def test_gpus_that_must_be_there_are_missed_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpus, "visible_gpus", lambda: ("0",))
    assert gpus_for(HardwareConfig("auto")) == ("0",)
    assert gpus_for(HardwareConfig("cpu")) == ()
    monkeypatch.setattr(gpus, "visible_gpus", lambda: ())
    assert gpus_for(HardwareConfig("auto")) == ()
    with pytest.raises(ConfigError, match="--device is 'cuda', but NVIDIA's driver sees no GPU"):
        gpus_for(HardwareConfig("cuda"))


DRIVER = """
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
"""


@pytest.mark.needs("compiler")  # of a driver to ask
@pytest.mark.parametrize(
    ("variable", "names"),
    [
        (None, ("0", "1")),
        ("", ("0", "1")),
        ("3, 5", ("3", "5")),
        ("GPU-a,MIG-b", ("GPU-a", "MIG-b")),
    ],
)
def test_the_driver_says_how_many_gpus_there_are(
    tmp_path: Path, variable: str | None, names: tuple[str, ...]
) -> None:
    (tmp_path / "driver.c").write_text(DRIVER)
    library = tmp_path / "driver.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "driver.c")], check=True
    )
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert visible_gpus(environment, driver=str(library)) == names


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("box.local", "http://box.local:8000"),
    ],
)
def test_the_url_is_one_that_clients_on_this_machine_can_use(host: str, url: str) -> None:
    assert plan(UpConfig(host=host)).url == url


def test_a_mesh_has_as_many_ports_as_it_needs() -> None:
    config = UpConfig(model=("a", "b"), kvstore=2, index="redis://a", router=3, prefill=1, decode=4)
    commands = [part.command for part in plan(config).parts if part.name != "gateway"]
    given = [
        words[words.index(flag) + 1] for words in commands for flag in ("--port", "--metrics-port")
    ]
    assert sorted(map(int, given)) == list(PORTS[: num_ports(config)])
