"""Secrets, certificates, autoscaling, monitoring and routes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from pagemesh.identity.roles import REQUIRED, MeshRole
from pagemesh.telemetry.metrics.admission import REQUESTS_QUEUED
from pagemesh.telemetry.metrics.engine import GPU_UTILIZATION, KV_CACHE_USAGE, NUM_REQUESTS_WAITING
from tests.charts.rendering import CHART, ROLES, Rendered, environment, mounts, volumes

KEY = "sk-very-secret"
KEDA = {"provider": "keda", "prometheusAddress": "http://prometheus:9090"}
HUB_MODELS = [{"name": "m", "source": {"type": "hub", "repository": "org/m"}}]
ROUTES = {"enabled": True, "parentRefs": [{"name": "public"}]}


def test_keys_of_the_values_are_in_a_secret_and_nowhere_else() -> None:
    rendered = Rendered(
        {"models": HUB_MODELS, "auth": {"apiKeys": [KEY, "sk-2"]}, "hub": {"token": "hf_secret"}}
    )
    secrets = rendered.of_kind("Secret")
    assert {tuple(each["stringData"].items()) for each in secrets} == {
        (("api-keys", f"{KEY},sk-2"),),
        (("token", "hf_secret"),),
    }
    others = [each for each in rendered.objects if each["kind"] != "Secret"]
    assert not re.search("sk-very|hf_secret", json.dumps(others) + rendered.notes)


def test_routers_get_keys_from_a_secret_and_gateways_refuse_calls_without() -> None:
    rendered = Rendered({"auth": {"existingSecret": "there", "existingSecretKey": "k"}})
    assert environment(rendered.container("router"))["PAGEMESH_API_KEY"] == {
        "secretKeyRef": {"name": "there", "key": "k"}
    }
    assert "--api-key-required" in rendered.flags("gateway")
    assert "--api-key-required" not in Rendered().flags("gateway")
    for role in ("gateway", "prefill", "decode", "kvstore"):
        assert "PAGEMESH_API_KEY" not in environment(rendered.container(role))


@pytest.mark.parametrize("auth", [{"keyFile": "tenants: {}"}, {"keyFileSecret": "there"}])
def test_a_key_file_is_a_folder_that_the_kubelet_keeps_up_to_date(auth: dict[str, str]) -> None:
    rendered = Rendered({"auth": auth})
    assert rendered.flags("router")["--api-key-file"] == ["/etc/pagemesh/keys/keys.yaml"]
    mount = mounts(rendered.container("router"))["/etc/pagemesh/keys"]
    assert "subPath" not in mount
    secret = volumes(rendered.pod("router"))["keys"]["secret"]["secretName"]
    assert secret == auth.get("keyFileSecret", "mesh-pagemesh-key-file")


def test_pods_are_replaced_when_a_key_of_the_values_changes() -> None:
    def annotations(key: str) -> Any:
        rendered = Rendered({"auth": {"apiKeys": [key]}})
        return rendered.one("Deployment", "router")["spec"]["template"]["metadata"]["annotations"]

    assert annotations("a") != annotations("b")
    assert annotations("a") == annotations("a")


def test_the_hub_token_comes_from_a_secret() -> None:
    rendered = Rendered({"models": HUB_MODELS, "hub": {"existingSecret": "there"}})
    for role in ("router", "prefill", "decode"):
        assert environment(rendered.container(role))["HF_TOKEN"] == {
            "secretKeyRef": {"name": "there", "key": "token"}
        }


def test_the_password_of_redis_is_in_no_object() -> None:
    redis = {"type": "external", "host": "redis", "existingSecret": "there", "tls": True}
    rendered = Rendered({"redis": redis})
    assert rendered.flags("kvstore")["--index"] == ["rediss://:$(REDIS_PASSWORD)@redis:6379/0"]
    assert environment(rendered.container("kvstore"))["REDIS_PASSWORD"] == {
        "secretKeyRef": {"name": "there", "key": "password"}
    }


def test_certificates_name_the_roles_that_the_processes_check() -> None:
    rendered = Rendered({"meshTls": {"enabled": True}})
    for role in MeshRole:
        if role in (MeshRole.WORKER, MeshRole.CLIENT):
            continue
        spec = rendered.one("Certificate", f"{role.value}-mesh-tls")["spec"]
        assert set(spec["dnsNames"]) == {each.dns_name for each in REQUIRED[role]}
        assert spec["usages"] == ["server auth", "client auth"]
    for name in ROLES:
        secret = volumes(rendered.pod(name))["mesh-tls"]["secret"]["secretName"]
        assert secret == rendered.one("Certificate", f"{name}-mesh-tls")["spec"]["secretName"]
        assert rendered.flags(name)["--mesh-cert"] == ["/etc/pagemesh/mesh-tls/tls.crt"]


def test_the_mesh_has_an_authority_of_its_own_unless_it_is_given_one() -> None:
    own = Rendered({"meshTls": {"enabled": True}})
    assert own.names("Issuer") == ["mesh-ca", "mesh-self-signed"]
    assert own.one("Certificate", "mesh-ca")["spec"]["isCA"] is True
    issuer = {"name": "ours", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    given = Rendered({"meshTls": {"enabled": True, "issuer": issuer}})
    assert given.names("Issuer") == []
    assert given.one("Certificate", "router-mesh-tls")["spec"]["issuerRef"] == issuer


def test_given_certificates_are_mounted_and_none_are_asked_for() -> None:
    names = {role: f"given-{role}" for role in ROLES}
    values = {"meshTls": {"enabled": True, "provider": "secrets", "secretNames": names}}
    rendered = Rendered(values)
    assert rendered.of_kind("Certificate") == []
    for role in ROLES:
        assert volumes(rendered.pod(role))["mesh-tls"]["secret"]["secretName"] == f"given-{role}"


def test_clients_are_served_by_tls_and_shown_their_authority() -> None:
    client = {"enabled": True, "secretName": "clients", "clientCaSecret": "partners"}
    rendered = Rendered({"clientTls": client})
    flags = rendered.flags("gateway")
    assert flags["--ssl-certfile"] == ["/etc/pagemesh/client-tls/tls.crt"]
    assert flags["--ssl-ca-certs"] == ["/etc/pagemesh/client-ca/ca.crt"]
    assert volumes(rendered.pod("gateway"))["client-ca"]["secret"]["secretName"] == "partners"


def adapter_asks(rendered: Rendered) -> dict[str, str]:
    """Metrics of the decode workers' HorizontalPodAutoscaler, with the values that they are compared with."""
    metrics = rendered.one("HorizontalPodAutoscaler", "decode-demo")["spec"]["metrics"]
    sources = [each.get("external") or each["pods"] for each in metrics]
    return {each["metric"]["name"]: each["target"]["averageValue"] for each in sources}


def keda_asks(rendered: Rendered) -> dict[str, str]:
    """Queries of the decode workers' ScaledObject, with the values that they are compared with."""
    triggers = rendered.one("ScaledObject", "decode-demo")["spec"]["triggers"]
    return {each["metadata"]["query"]: each["metadata"]["threshold"] for each in triggers}


def test_workers_scale_by_the_queue_their_own_queue_and_kv_use() -> None:
    rendered = Rendered({"decode": {"autoscaling": {"enabled": True, "kvCacheUsage": 75}}})
    scaler = rendered.one("HorizontalPodAutoscaler", "decode-demo")["spec"]
    assert scaler["scaleTargetRef"]["kind"] == "Deployment"
    assert adapter_asks(rendered) == {
        "pagemesh_requests_queued": "8",
        "vllm_num_requests_waiting": "4",
        "vllm_kv_cache_usage_perc": "750m",
    }
    assert "replicas" not in rendered.one("Deployment", "decode-demo")["spec"]


def test_the_adapters_rules_make_the_metrics_that_autoscalers_ask_for() -> None:
    rules = yaml.safe_load((CHART / "files/prometheus-adapter.yaml").read_text(encoding="utf-8"))
    [custom], [external] = rules["rules"]["custom"], rules["rules"]["external"]
    [wanted] = re.findall('__name__=~"([^"]+)"', custom["seriesQuery"])
    names = {
        NUM_REQUESTS_WAITING: "vllm_num_requests_waiting",
        KV_CACHE_USAGE: "vllm_kv_cache_usage_perc",
        GPU_UTILIZATION: "pagemesh_gpu_utilization",
    }
    for spec, name in names.items():
        assert re.search(wanted, spec.name)
        assert re.sub(custom["name"]["matches"], r"\1_\2", spec.name) == name
    assert custom["name"]["as"] == "${1}_${2}"
    assert REQUESTS_QUEUED.name in external["seriesQuery"]
    assert external["name"]["as"] == "pagemesh_requests_queued"


def test_workers_scale_by_their_gpus_where_they_are_told_to() -> None:
    decode = {"gpus": 1, "autoscaling": {"enabled": True, "gpuUtilization": 70}}
    assert adapter_asks(Rendered({"decode": decode}))["pagemesh_gpu_utilization"] == "700m"
    asked = keda_asks(Rendered({"autoscaling": KEDA, "decode": decode}))
    assert [value for query, value in asked.items() if "pagemesh:gpu_utilization{" in query] == [
        "0.7"
    ]


def test_keda_asks_prometheus_for_metrics_that_there_are() -> None:
    values = {"autoscaling": KEDA, "decode": {"autoscaling": {"enabled": True, "minReplicas": 2}}}
    rendered = Rendered(values)
    scaled = rendered.one("ScaledObject", "decode-demo")["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (2, 4)
    asked = keda_asks(rendered)
    assert asked == {
        'sum(pagemesh:requests_queued{namespace="llm",model_name="demo",pod=~"mesh-pagemesh-router-.+"})': "8",
        'sum(vllm:num_requests_waiting{namespace="llm",model_name="demo",pod=~"mesh-pagemesh-decode-.+"})': "4",
        'sum(vllm:kv_cache_usage_perc{namespace="llm",model_name="demo",pod=~"mesh-pagemesh-decode-.+"})': "0.8",
    }
    declared = {REQUESTS_QUEUED, NUM_REQUESTS_WAITING, KV_CACHE_USAGE}
    for spec in declared:
        assert any(f"({spec.name}{{" in query for query in asked)
        assert "model_name" in [label.name for label in spec.labels]


def test_groups_are_scaled_as_groups() -> None:
    values = {"decode": {"multiNode": {"enabled": True}, "autoscaling": {"enabled": True}}}
    rendered = Rendered(values)
    assert rendered.one("HorizontalPodAutoscaler", "decode-demo")["spec"]["scaleTargetRef"] == {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "name": "mesh-pagemesh-decode-demo",
    }
    assert "replicas" not in rendered.one("LeaderWorkerSet", "decode-demo")["spec"]


GROUPS_OF_THREE = {
    "multiNode": {"enabled": True, "size": 3},
    "autoscaling": {"enabled": True, "kvCacheUsage": 75},
}


def test_a_sum_is_held_against_what_the_workers_of_a_group_take_together() -> None:
    # KEDA divides each sum by the replicas of the scale subresource, which are groups.
    rendered = Rendered({"autoscaling": KEDA, "decode": GROUPS_OF_THREE})
    asked = keda_asks(rendered)
    assert {query.partition("{")[0]: value for query, value in asked.items()} == {
        "sum(pagemesh:requests_queued": "24",
        "sum(vllm:num_requests_waiting": "12",
        "sum(vllm:kv_cache_usage_perc": "2.25",
    }


def test_an_average_over_pods_is_per_worker_in_groups_too() -> None:
    # The queue of the routers is divided by groups; metrics of pods are those of the leaders, one of a group.
    assert adapter_asks(Rendered({"decode": GROUPS_OF_THREE})) == {
        "pagemesh_requests_queued": "24",
        "vllm_num_requests_waiting": "4",
        "vllm_kv_cache_usage_perc": "750m",
    }


def test_a_size_without_groups_changes_no_threshold() -> None:
    alone = {**GROUPS_OF_THREE, "multiNode": {"enabled": False, "size": 3}}
    assert adapter_asks(Rendered({"decode": alone}))["pagemesh_requests_queued"] == "8"
    asked = keda_asks(Rendered({"autoscaling": KEDA, "decode": alone}))
    assert list(asked.values()) == ["8", "4", "0.75"]


@pytest.mark.parametrize("role", ["gateway", "router"])
def test_gateways_and_routers_scale_by_cpu(role: str) -> None:
    rendered = Rendered({role: {"autoscaling": {"enabled": True, "cpuUtilization": 55}}})
    [metric] = rendered.one("HorizontalPodAutoscaler", role)["spec"]["metrics"]
    assert metric["resource"]["target"]["averageUtilization"] == 55


def test_limits_are_divided_among_as_many_routers_as_there_may_be() -> None:
    scaled = {"router": {"autoscaling": {"enabled": True, "maxReplicas": 6}}}
    assert Rendered(scaled).flags("router")["--limits-shared-by"] == ["6"]
    assert Rendered({"router": {"limitsSharedBy": 2}}).flags("router")["--limits-shared-by"] == [
        "2"
    ]


@pytest.mark.parametrize(
    ("kind", "name", "endpoints"),
    [
        ("podMonitor", "PodMonitor", "podMetricsEndpoints"),
        ("serviceMonitor", "ServiceMonitor", "endpoints"),
    ],
)
def test_monitors_show_prometheus_a_certificate_where_the_mesh_has_tls(
    kind: str, name: str, endpoints: str
) -> None:
    rendered = Rendered({"monitoring": {"type": kind}, "meshTls": {"enabled": True}})
    assert rendered.names(name) == sorted(ROLES)
    [endpoint] = rendered.one(name, "decode")["spec"][endpoints]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["serverName"] == "decode.pagemesh"
    assert endpoint["tlsConfig"]["keySecret"]["name"] == "mesh-pagemesh-health-mesh-tls"
    [gateway] = rendered.one(name, "gateway")["spec"][endpoints]
    assert (gateway["scheme"], gateway["tlsConfig"]["serverName"]) == ("https", "gateway.pagemesh")
    [plain] = Rendered({"monitoring": {"type": kind}}).one(name, "decode")["spec"][endpoints]
    assert plain["relabelings"] == [{"targetLabel": "component", "replacement": "decode"}]
    assert "tlsConfig" not in plain


def test_service_monitors_have_services_to_look_at() -> None:
    rendered = Rendered({"monitoring": {"type": "serviceMonitor"}})
    for role in ROLES:
        service = rendered.one("Service", f"{role}-metrics")
        wanted = rendered.one("ServiceMonitor", role)["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= service["metadata"]["labels"].items()


def test_http_goes_to_the_gateway_which_turns_it_into_grpc() -> None:
    rendered = Rendered({"gatewayApi": ROUTES})
    [rule] = rendered.of_kind("HTTPRoute")[0]["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "mesh-pagemesh-gateway", "port": 8000}]
    assert rule["timeouts"] == {"request": "0s"}


def test_grpc_may_go_to_the_routers_without_a_hop() -> None:
    values = {
        "gatewayApi": {**ROUTES, "grpc": True, "grpcBackend": "router"},
        "networkPolicy": {"grpcClientsFrom": [{"namespaceSelector": {}}]},
    }
    rendered = Rendered(values)
    [rule] = rendered.of_kind("GRPCRoute")[0]["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "mesh-pagemesh-router", "port": 9000}]
    assert [each["method"]["service"] for each in rule["matches"]] == [
        "pagemesh.v1.Inference", "grpc.health.v1.Health",
    ]  # fmt: skip
    [port] = rendered.one("Service", "router")["spec"]["ports"]
    assert port["appProtocol"] == "kubernetes.io/h2c"


def test_the_gateways_are_an_inference_pool() -> None:
    extension = {
        "enabled": True,
        "endpointPicker": {"name": "picker"},
        "objectives": [{"name": "chat", "priority": 10}],
    }
    rendered = Rendered({"gatewayApi": ROUTES, "inferenceExtension": extension})
    [pool] = rendered.of_kind("InferencePool")
    [labels] = [
        each["metadata"]["labels"] for role, _, each in rendered.workloads() if role == "gateway"
    ]
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert pool["spec"]["targetPorts"] == [{"number": 8000}]
    [rule] = rendered.of_kind("HTTPRoute")[0]["spec"]["rules"]
    assert rule["backendRefs"] == [
        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "mesh-pagemesh"}
    ]
    [objective] = rendered.of_kind("InferenceObjective")
    assert objective["spec"]["poolRef"]["name"] == pool["metadata"]["name"]


def test_without_a_gateway_nothing_of_it_is_left() -> None:
    rendered = Rendered({"gateway": {"enabled": False}, "monitoring": {"type": "podMonitor"}})
    text = json.dumps(rendered.objects)
    assert "mesh-pagemesh-gateway" not in text
    assert "There is no HTTP" in rendered.notes
