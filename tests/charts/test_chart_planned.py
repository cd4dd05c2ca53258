"""Values that `pagemesh plan` writes are values of the chart, and become what was planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pagemesh.cli.main import main
from pagemesh.config.served import read_served_models
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.registry import find_architecture
from pagemesh.plan.deployment import Deployment, plan_deployment
from pagemesh.plan.settings import DeploymentConfig, GpuConfig
from pagemesh.plan.values import Served, as_values
from pagemesh.plan.worker import Subject, make_worker
from pagemesh.sim.settings import WorkloadConfig
from pagemesh.sizing.plan import Hardware, MemoryPlan, StepLimits, kv_layout
from tests.charts.rendering import ROOT, Object, Rendered

RATES = str(ROOT / "docs/examples/demo_rates.yaml")
QUICK: tuple[str, ...] = ("--request-rate", "5", "--num-prompts", "40", "--prefix-tokens", "200")
QUICK += ("--prompt-tokens", "60", "--output-tokens", "8", "--goodput", "ttft:2000", "tpot:100")
CONFIG = DeploymentConfig(
    request_rate=5,
    prefill_ratios=(1,),
    workload=WorkloadConfig(num_prompts=40, prefix_tokens=200, prompt_tokens=60, output_tokens=8),
)
HUB = Served(
    model="Qwen/Qwen3-8B",
    revision="main",
    is_folder=False,
    dtype="bfloat16",
    kv_cache_dtype="auto",
    max_model_len=2048,
    block_size=16,
    gpu_memory_utilization=0.9,
    quantization="int4",
)


@pytest.fixture(scope="module")
def subject() -> Subject:
    """A small model on an L4, as if it were the hub's."""
    settings = ConfigJson.read(ROOT / "models/demo/config.json")
    architecture = find_architecture(settings)
    assert architecture is not None
    spec = architecture.make_spec(settings)
    limits = StepLimits(num_tokens=512, num_seqs=64, max_model_len=2048)
    memory = MemoryPlan(2**30, 2**24, 2**29, 0, 0, kv_layout(spec, "bfloat16", 16), 2048)
    return Subject(
        "Qwen/Qwen3-8B",
        "LlamaForCausalLM",
        spec,
        8_000_000_000,
        "bfloat16",
        Hardware("cuda", 2**30),
        limits,
        memory,
        16_000_000_000,
    )


@pytest.fixture(scope="module")
def deployment(subject: Subject) -> Deployment:
    return plan_deployment(subject, make_worker(subject, GpuConfig("l4"), None), CONFIG)


def rendered(text: str) -> Rendered:
    values: Object = yaml.safe_load(text)
    return Rendered(values)


def replicas(release: Rendered) -> dict[str, int]:
    return {role: workload["spec"]["replicas"] for role, workload, _ in release.workloads()}


def test_a_plan_for_a_cpu_becomes_its_workers(demo_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    flags = ("--memory", "1", "--rates", RATES, *QUICK, "--spare", "2", "--values", str(file))
    assert main(["plan", str(demo_model), *flags]) == 0
    release = rendered(file.read_text())
    assert replicas(release) == {"gateway": 3, "router": 3, "prefill": 0, "decode": 3, "kvstore": 1}
    told = release.flags("decode")
    assert told["--kv-cache-memory"] == ["0.67"]
    assert (told["--max-num-seqs"], told["--max-num-batched-tokens"]) == (["64"], ["512"])
    limits = release.container("decode")["resources"]["limits"]
    assert limits == {"memory": "1024Mi"}


@pytest.mark.parametrize("model", ["models/demo", "demo"])
def test_the_demo_model_is_taken_from_the_images(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    file = tmp_path / "values.yaml"
    flags = ("--memory", "1", "--rates", RATES, *QUICK, "--values", str(file))
    assert main(["plan", model, *flags]) == 0
    told = rendered(file.read_text()).flags("decode")
    assert told["--model"] == ["/opt/pagemesh/models/demo"]
    assert told["--served-model-name"] == ["demo"]


def test_a_plan_for_gpus_becomes_pods_with_gpus(deployment: Deployment, subject: Subject) -> None:
    release = rendered(as_values(deployment, CONFIG, subject, HUB))
    size = deployment.size
    found = replicas(release)
    assert (found["decode"], found["prefill"]) == (size.decode, size.prefill)
    assert size.prefill > 1
    for role in ("decode", "prefill"):
        told = release.flags(role)
        assert told["--model"] == told["--served-model-name"] == ["Qwen/Qwen3-8B"]
        assert told["--gpu-memory-utilization"] == ["0.9"]
        # 14.9 GiB of model, whose files the node may keep, beside 8 GiB.
        assert release.container(role)["resources"] == {
            "requests": {"cpu": "4", "memory": "8Gi"},
            "limits": {"memory": "23Gi", "nvidia.com/gpu": 1},
        }
    (claim,) = release.of_kind("PersistentVolumeClaim")
    # 16 GB in bfloat16, a quarter more, and one.
    assert claim["spec"]["resources"]["requests"]["storage"] == "20Gi"


def test_a_model_is_quantised_as_planned_in_all_its_workers(
    deployment: Deployment, subject: Subject
) -> None:
    text = as_values(deployment, CONFIG, subject, HUB)
    values = yaml.safe_load(text)
    assert values["models"][0]["quantization"] == "int4"
    assert "extraArgs" not in values["prefill"] | values["decode"]
    release = rendered(text)
    for role in ("decode", "prefill"):
        assert release.flags(role)["--quantization"] == ["int4"]
    unsaid = as_values(deployment, CONFIG, subject, HUB._replace(quantization=None))
    assert "--quantization" not in rendered(unsaid).flags("decode")


def test_a_gguf_file_of_the_hub_is_planned_for_all_who_fetch_it(
    deployment: Deployment, subject: Subject
) -> None:
    file = "bartowski/Qwen3-8B-GGUF:Q4_K_M"
    served = HUB._replace(model=file, revision=None, quantization=None)
    release = rendered(as_values(deployment, CONFIG, subject, served))
    told = read_served_models(release.flags("router")["--model"], (), ())
    assert [(model.name, model.source) for model in told.models] == [(file, file)]
    for role in ("decode", "prefill"):
        flags = release.flags(role)
        assert flags["--model"] == flags["--served-model-name"] == [file]
    # Routers have as long as workers for it.
    started = [release.container(role)["startupProbe"] for role in ("router", "decode")]
    assert started[0] == started[1]


def test_an_update_needs_no_gpu_that_was_not_planned(
    deployment: Deployment, subject: Subject
) -> None:
    release = rendered(as_values(deployment, CONFIG, subject, HUB))
    updates = {
        role: workload["spec"]["strategy"]["rollingUpdate"]
        for role, workload, _ in release.workloads()
        if role in ("decode", "prefill")
    }
    one_by_one = {"maxSurge": 0, "maxUnavailable": 1}
    assert updates == {"decode": one_by_one, "prefill": one_by_one}
    assert "an update leaves requests without a worker" not in release.notes


def test_the_host_holds_a_model_that_transformers_reads(
    deployment: Deployment, subject: Subject
) -> None:
    # Of 4 bits, but as floats.
    around = replace(deployment.surroundings, model_bytes=4_000_000_000)
    packed = replace(deployment, surroundings=around)
    release = rendered(as_values(packed, CONFIG, replace(subject, spec=None), HUB))
    resources = release.container("decode")["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"] == "23Gi"


def test_several_kvstores_get_a_store_of_their_own(
    deployment: Deployment, subject: Subject
) -> None:
    around = replace(deployment.surroundings, kvstores=2)
    text = as_values(replace(deployment, surroundings=around), CONFIG, subject, HUB)
    release = rendered(text)
    assert replicas(release)["kvstore"] == 2
    assert release.flags("kvstore")["--index"] == ["redis://valkey:6379/0"]


def test_a_folder_is_expected_in_a_claim(deployment: Deployment, subject: Subject) -> None:
    served = HUB._replace(model="models/My_Model.1/", is_folder=True, revision=None)
    text = as_values(deployment, CONFIG, subject, served)
    (model,) = yaml.safe_load(text)["models"]
    assert (model["name"], model["servedName"]) == ("my-model-1", "My_Model.1")
    assert model["source"] == {"type": "claim", "claimName": "models", "path": "My_Model.1"}
    assert "decode" in replicas(rendered(text))


def test_short_names_stand_for_what_the_images_have_or_lack(
    deployment: Deployment, subject: Subject
) -> None:
    sources = {}
    for name in ("demo", "smollm2"):
        served = HUB._replace(model=name, is_folder=True, revision=None)
        text = as_values(deployment, CONFIG, subject, served)
        (model,) = yaml.safe_load(text)["models"]
        assert (model["name"], model["servedName"]) == (name, name)
        sources[name] = model["source"]
    assert sources["demo"] == {"type": "bundled", "path": "/opt/pagemesh/models/demo"}
    file = "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert sources["smollm2"] == {"type": "claim", "claimName": "models", "path": file}


def test_every_number_says_why(deployment: Deployment, subject: Subject) -> None:
    text = as_values(deployment, CONFIG, subject, HUB)
    lines = text.splitlines()
    numbers = [n for n, line in enumerate(lines) if line.strip().startswith("replicas:")]
    assert len(numbers) == 5
    assert all(lines[number - 1].strip().startswith("# ") for number in numbers)
    assert f"{deployment.least.decode} are enough, 1 spare." in text
    assert lines[0].startswith("# Planned by `pagemesh plan Qwen/Qwen3-8B` for 4.38 requests/s")
    assert 'policy: "kv_aware"' in text
