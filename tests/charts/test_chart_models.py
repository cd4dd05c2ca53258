"""Each model has workers of its own, and its files are where it is read."""

from __future__ import annotations

from typing import Any

import pytest

from pagemesh.config.served import read_served_models
from tests.charts.rendering import Rendered, environment, mounts, volumes

CLAIM = {"type": "claim", "claimName": "models", "path": "/a/b/"}
HUB = {"type": "hub", "repository": "org/m"}


def with_source(source: dict[str, Any], **more: Any) -> Rendered:
    return Rendered({"models": [{"name": "m", "source": source}], **more})


def test_every_model_has_prefill_and_decode_workers() -> None:
    bundled = {"type": "bundled", "path": "/x"}
    rendered = Rendered(
        {
            "models": [
                {"name": "a", "source": bundled, "decode": {"replicas": 3, "gpus": 1}},
                {"name": "b", "servedName": "org/b", "source": CLAIM, "prefill": {"replicas": 0}},
            ],
            "decode": {"replicas": 2, "nodeSelector": {"pool": "gpu"}},
        }
    )
    assert rendered.names("Deployment") == [
        "decode-a", "decode-b", "gateway", "prefill-a", "prefill-b", "router",
    ]  # fmt: skip
    replicas = {
        name: rendered.one("Deployment", name)["spec"]["replicas"]
        for name in ("decode-a", "decode-b", "prefill-a", "prefill-b")
    }
    # What an entry says wins over what all workers have, also when it is 0.
    assert replicas == {"decode-a": 3, "decode-b": 2, "prefill-a": 1, "prefill-b": 0}
    for name in ("decode-a", "decode-b"):
        pod = rendered.one("Deployment", name)["spec"]["template"]["spec"]
        assert pod["nodeSelector"] == {"pool": "gpu"}


def test_routers_read_the_tokenizers_of_all_models_under_the_names_that_clients_use() -> None:
    rendered = Rendered(
        {
            "models": [
                {"name": "a", "source": {"type": "bundled", "path": "/opt/a"}},
                {"name": "b", "servedName": "org/b", "source": CLAIM},
            ]
        }
    )
    assert rendered.flags("router")["--model"] == ["a=/opt/a", "org/b=/model/b/a/b"]
    assert mounts(rendered.container("router"))["/model/b"]["readOnly"] is True


def test_a_worker_tells_the_name_that_clients_use() -> None:
    rendered = Rendered({"models": [{"name": "m", "servedName": "org/m", "source": CLAIM}]})
    assert rendered.flags("decode")["--served-model-name"] == ["org/m"]
    assert rendered.flags("decode")["--model"] == ["/model/m/a/b"]


def test_a_model_of_the_hub_is_called_by_its_id_unless_it_is_given_a_name() -> None:
    models = [{"name": "m", "source": HUB}, {"name": "n", "servedName": "x/n", "source": HUB}]
    rendered = Rendered({"models": models})
    # Without a name of its own, for which the router's --model has the form that lets it answer to `m` too.
    assert rendered.flags("router")["--model"] == ["org/m", "x/n=org/m"]
    for role in ("prefill", "decode"):
        told = [
            pod["spec"]["containers"][0]["args"] for r, _, pod in rendered.workloads() if r == role
        ]
        names = [args[args.index("--served-model-name") + 1] for args in told]
        assert sorted(names) == ["org/m", "x/n"]
    assert "serves org/m, x/n once" in rendered.notes


@pytest.mark.parametrize(
    "repository", ["org/m-GGUF:Q4_K_M", "org/m-GGUF:a/m.gguf", "org/m-GGUF/m-00001-of-00002.gguf"]
)
def test_a_gguf_file_of_the_hub_is_named_as_for_a_process(repository: str) -> None:
    rendered = with_source({"type": "hub", "repository": repository})
    # Routers and workers fetch it themselves, by this name, into the cache that they share.
    assert rendered.flags("router")["--model"] == [repository]
    for role in ("prefill", "decode"):
        told = rendered.flags(role)
        assert told["--model"] == told["--served-model-name"] == [repository]
        assert environment(rendered.container(role))["HF_HOME"] == "/models"
        assert "initContainers" not in rendered.pod(role)


def test_a_gguf_file_of_the_hub_is_called_by_the_name_that_it_is_given() -> None:
    source = {"type": "hub", "repository": "org/m-GGUF:Q4_K_M"}
    rendered = Rendered({"models": [{"name": "m", "servedName": "org/m", "source": source}]})
    told = read_served_models(rendered.flags("router")["--model"], (), ())
    assert [(model.name, model.source) for model in told.models] == [("org/m", "org/m-GGUF:Q4_K_M")]
    assert rendered.flags("decode")["--served-model-name"] == ["org/m"]
    assert rendered.flags("decode")["--model"] == ["org/m-GGUF:Q4_K_M"]


@pytest.mark.parametrize(
    ("source", "model"),
    [
        ({"type": "bundled", "path": "/opt/m.gguf"}, "/opt/m.gguf"),
        ({"type": "claim", "claimName": "models", "path": "a/m.gguf"}, "/model/m/a/m.gguf"),
        ({"type": "image", "image": "models:1", "path": "/m.gguf"}, "/model/m/m.gguf"),
        ({"type": "init", "image": "models:1", "path": "/a/m.gguf"}, "/model/m/m.gguf"),
        ({"type": "init", "image": "aws:1", "command": ["x"], "path": "a/b"}, "/model/m/a/b"),
    ],
    ids=["bundled", "claim", "image", "init", "init-with-a-command"],
)
def test_a_path_may_name_a_file(source: dict[str, Any], model: str) -> None:
    rendered = with_source(source)
    assert rendered.flags("router")["--model"] == [f"m={model}"]
    assert rendered.flags("prefill")["--model"] == rendered.flags("decode")["--model"] == [model]


def test_a_model_in_a_claim_is_mounted_read_only() -> None:
    rendered = with_source(CLAIM)
    for role in ("router", "prefill", "decode"):
        claim = volumes(rendered.pod(role))["model-m"]["persistentVolumeClaim"]
        assert claim == {"claimName": "models", "readOnly": True}
        assert mounts(rendered.container(role))["/model/m"]["readOnly"] is True


def test_a_model_in_an_image_is_a_volume_of_it() -> None:
    rendered = with_source({"type": "image", "image": "models:1"})
    assert volumes(rendered.pod("decode"))["model-m"]["image"]["reference"] == "models:1"
    assert rendered.flags("decode")["--model"] == ["/model/m"]


def test_an_init_container_copies_a_model_out_of_its_image() -> None:
    rendered = with_source({"type": "init", "image": "models:1", "path": "/m/", "size": "5Gi"})
    for role in ("router", "decode"):
        [init] = rendered.pod(role)["initContainers"]
        assert init["image"] == "models:1"
        assert init["command"] == ["cp", "-RL", "/m/.", "/model/"]
        assert init["terminationMessagePolicy"] == "FallbackToLogsOnError"
        assert mounts(init)["/model"] == {"name": "model-m", "mountPath": "/model"}
        assert volumes(rendered.pod(role))["model-m"]["emptyDir"] == {"sizeLimit": "5Gi"}
        assert mounts(rendered.container(role))["/model/m"]["readOnly"] is True
    assert rendered.flags("decode")["--model"] == ["/model/m"]


@pytest.mark.parametrize(
    ("path", "files"),
    [
        ("/a/m.gguf", ["/a/m.gguf"]),
        ("/m-00001-of-00001.gguf", ["/m-00001-of-00001.gguf"]),
        (
            "/a/m-00001-of-00010.gguf",
            [f"/a/m-{part:05}-of-00010.gguf" for part in range(1, 11)],
        ),
    ],
)
def test_an_init_container_copies_the_parts_of_one_file(path: str, files: list[str]) -> None:
    source = {"type": "init", "image": "models:1", "path": path}
    [init] = with_source(source).pod("decode")["initContainers"]
    assert init["command"] == ["cp", "-RL", *files, "/model/"]


def test_an_init_container_runs_a_command_with_a_buckets_secret() -> None:
    source = {"type": "init", "image": "aws:1", "command": ["sync"], "envFromSecret": "bucket"}
    [init] = with_source(source).pod("decode")["initContainers"]
    assert init["command"] == ["sync"]
    assert init["envFrom"] == [{"secretRef": {"name": "bucket"}}]


def test_a_model_of_the_hub_is_kept_in_one_claim_for_all() -> None:
    rendered = with_source({**HUB, "revision": "v1"}, modelCache={"type": "claim", "size": "7Gi"})
    [claim] = rendered.of_kind("PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "7Gi"
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    for role in ("router", "prefill", "decode"):
        volume = volumes(rendered.pod(role))["model-cache"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert mounts(rendered.container(role))["/models"]["name"] == "model-cache"
        assert environment(rendered.container(role))["HF_HOME"] == "/models"
        assert rendered.flags(role)["--revision"] == ["v1"]
    assert rendered.flags("router")["--model"] == ["org/m"]


def test_an_existing_claim_is_taken_and_none_is_made() -> None:
    rendered = with_source(HUB, modelCache={"type": "claim", "existingClaim": "there"})
    assert rendered.of_kind("PersistentVolumeClaim") == []
    volume = volumes(rendered.pod("decode"))["model-cache"]
    assert volume["persistentVolumeClaim"]["claimName"] == "there"


def test_compiled_kernels_outlive_the_pods_of_workers_with_gpus() -> None:
    rendered = with_source(CLAIM, decode={"gpus": 1}, kernelCache={"type": "claim"})
    [claim] = rendered.of_kind("PersistentVolumeClaim")
    assert claim["spec"]["resources"]["requests"]["storage"] == "5Gi"
    volume = volumes(rendered.pod("decode"))["kernel-cache"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    container = rendered.container("decode")
    assert mounts(container)["/kernels"]["name"] == "kernel-cache"
    assert environment(container)["TRITON_CACHE_DIR"] == "/kernels"
    for role in ("router", "prefill"):
        assert "kernel-cache" not in volumes(rendered.pod(role))
        assert "TRITON_CACHE_DIR" not in environment(rendered.container(role))


def test_compiled_kernels_are_kept_with_the_pod_unless_said_otherwise() -> None:
    rendered = with_source(CLAIM, prefill={"gpus": 1})
    assert rendered.of_kind("PersistentVolumeClaim") == []
    assert volumes(rendered.pod("prefill"))["kernel-cache"] == {
        "name": "kernel-cache",
        "emptyDir": {"sizeLimit": "5Gi"},
    }


def test_no_claim_for_kernels_is_made_where_no_worker_has_a_gpu() -> None:
    rendered = with_source(CLAIM, kernelCache={"type": "claim"})
    assert rendered.of_kind("PersistentVolumeClaim") == []


def test_nothing_of_the_hub_is_in_pods_of_other_models() -> None:
    models = [{"name": "m", "source": CLAIM}, {"name": "h", "source": HUB}]
    rendered = Rendered({"models": models, "hub": {"existingSecret": "hub"}})
    for role in ("prefill", "decode"):
        other, ours = (rendered.one("Deployment", f"{role}-{name}") for name in ("m", "h"))
        for pod, has in ((other, False), (ours, True)):
            spec = pod["spec"]["template"]["spec"]
            assert ("HF_TOKEN" in environment(spec["containers"][0])) is has
            assert ("model-cache" in volumes(spec)) is has


def test_no_volume_is_made_for_the_hub_where_no_model_comes_from_it() -> None:
    rendered = with_source(CLAIM, modelCache={"type": "claim"})
    assert rendered.of_kind("PersistentVolumeClaim") == []
    assert "model-cache" not in volumes(rendered.pod("router"))


@pytest.mark.parametrize(
    ("values", "key", "flag", "text"),
    [
        ("decode", {"maxNumSeqs": 32}, "--max-num-seqs", "32"),
        ("decode", {"maxNumBatchedTokens": 1048576}, "--max-num-batched-tokens", "1048576"),
        ("decode", {"gpuMemoryUtilization": 0.85}, "--gpu-memory-utilization", "0.85"),
        ("decode", {"kvCacheMemory": 0.5}, "--kv-cache-memory", "0.5"),
        ("decode", {"swapSpace": 8}, "--swap-space", "8"),
        ("prefill", {"maxNumSeqs": 4}, "--max-num-seqs", "4"),
        ("router", {"tokensPerMinute": 1000000}, "--tokens-per-minute", "1000000"),
        ("router", {"requestsPerMinute": 60}, "--requests-per-minute", "60"),
        ("router", {"concurrentRequests": 8}, "--concurrent-requests", "8"),
        ("router", {"maxOutputTokens": 4096}, "--max-output-tokens", "4096"),
        ("router", {"maxOutputTokensPolicy": "refuse"}, "--max-output-tokens-policy", "refuse"),
        ("router", {"requestTimeout": 0.5}, "--request-timeout", "0.5"),
        ("router", {"policy": "least_loaded"}, "--policy", "least_loaded"),
        ("router", {"replicas": 3}, "--limits-shared-by", "3"),
        ("kvstore", {"indexMaxBlocks": 3000000}, "--index-max-blocks", "3000000"),
        ("kvstore", {"heartbeatInterval": 0.5}, "--heartbeat-interval", "0.5"),
        ("gateway", {"maxBodySize": 64}, "--max-body-size", "64"),
        ("gateway", {"concurrency": 4}, "--concurrency", "4"),
        ("gateway", {"accessLog": True}, "--access-log", "-"),
    ],
)
def test_a_value_becomes_its_flag(values: str, key: dict[str, Any], flag: str, text: str) -> None:
    assert Rendered({values: key}).flags(values)[flag] == [text]


@pytest.mark.parametrize(
    ("key", "flag", "text"),
    [
        ({"dtype": "bfloat16"}, "--dtype", "bfloat16"),
        ({"maxModelLen": 131072}, "--max-model-len", "131072"),
        ({"blockSize": 32}, "--block-size", "32"),
        ({"quantization": "int8"}, "--quantization", "int8"),
    ],
)
def test_what_both_kinds_of_worker_must_agree_on_is_said_once(
    key: dict[str, Any], flag: str, text: str
) -> None:
    rendered = Rendered({"models": [{"name": "m", "source": CLAIM, **key}]})
    assert rendered.flags("prefill")[flag] == rendered.flags("decode")[flag] == [text]


def test_each_model_is_quantised_in_a_way_of_its_own() -> None:
    models = [
        {"name": "a", "source": CLAIM, "quantization": "int4"},
        {"name": "b", "source": CLAIM, "quantization": "fp8"},
        {"name": "c", "source": CLAIM},
    ]
    rendered = Rendered({"models": models})
    for role in ("prefill", "decode"):
        told = []
        for name in "abc":
            pod = rendered.one("Deployment", f"{role}-{name}")["spec"]["template"]["spec"]
            words = pod["containers"][0]["args"]
            told.append(
                [words[at + 1] for at, each in enumerate(words) if each == "--quantization"]
            )
        assert told == [["int4"], ["fp8"], []]
    # It reads no weights.
    assert "--quantization" not in rendered.flags("router")


def test_unset_values_leave_the_flags_to_pagemesh() -> None:
    unset = {"--max-num-seqs", "--kv-cache-memory", "--max-model-len", "--quantization"}
    assert unset.isdisjoint(Rendered().flags("decode"))


def test_groups_of_pods_are_made_for_workers_that_span_nodes() -> None:
    group = {"enabled": True, "size": 4, "exclusiveTopologyKey": "rack"}
    rendered = Rendered({"decode": {"replicas": 2, "multiNode": group}})
    assert rendered.names("LeaderWorkerSet") == ["decode-demo"]
    assert "decode-demo" not in rendered.names("Deployment")
    found = rendered.one("LeaderWorkerSet", "decode-demo")
    assert found["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    assert found["spec"]["replicas"] == 2
    assert found["spec"]["leaderWorkerTemplate"]["size"] == 4
    assert found["metadata"]["annotations"] == {
        "leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"
    }
    # Every pod of a group is a worker of its own, under its own address.
    assert rendered.flags("decode")["--advertise"] == ["$(POD_IP):9000"]


def test_kvstores_are_listed_by_the_names_of_their_pods() -> None:
    rendered = Rendered({"kvstore": {"replicas": 2}, "redis": {"type": "bundled"}})
    expected = "mesh-pagemesh-kvstore-0.mesh-pagemesh-kvstore:9000,mesh-pagemesh-kvstore-1.mesh-pagemesh-kvstore:9000"
    for role in ("router", "prefill", "decode"):
        assert rendered.flags(role)["--kvstore"] == [expected]
    stateful = rendered.one("StatefulSet", "kvstore")["spec"]
    service = rendered.one("Service", "kvstore")
    assert (stateful["serviceName"], stateful["replicas"]) == (service["metadata"]["name"], 2)
    assert service["spec"]["clusterIP"] == "None"


def test_gateways_find_all_routers_behind_one_name() -> None:
    rendered = Rendered({"router": {"replicas": 3}})
    assert rendered.flags("gateway")["--routers"] == ["mesh-pagemesh-router:9000"]
    assert rendered.one("Service", "router")["spec"]["clusterIP"] == "None"
