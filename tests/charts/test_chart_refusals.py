"""Wrong values are refused by the name of their key before anything is installed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import helm_python as helm
import pytest

from tests.charts.rendering import CHART, ROLES, Rendered, chart


class Wrong(NamedTuple):
    """Values as `helm --set` has them, and words that the refusal must have."""

    values: str
    words: tuple[str, ...]


def path(*keys: str) -> str:
    """A key as JSON schema errors name it."""
    return "/" + "/".join(keys)


BY_SCHEMA = (
    Wrong("rooter.replicas=2", ("rooter",)),
    Wrong("router.replica=2", (path("router"), "replica")),
    Wrong("router.replicas=two", (path("router", "replicas"), "want integer")),
    Wrong("router.replicas=0", (path("router", "replicas"),)),
    Wrong("router.policy=random", (path("router", "policy"), "kv_aware", "round_robin")),
    Wrong("router.gracePeriod=-1", (path("router", "gracePeriod"),)),
    Wrong("router.resources.limit.cpu=1", (path("router", "resources"), "limit")),
    Wrong("router.resources.limits.memory=2GB", (path("router", "resources", "limits", "memory"),)),
    Wrong("router.tolerations[0].effects=NoSchedule", (path("router", "tolerations", "0"), "effects")),
    Wrong("router.overrideGenerationConfig.temprature=1", ("invalid propertyName 'temprature'",)),
    Wrong("router.modelAliases={gpt}", (path("router", "modelAliases", "0"),)),
    Wrong("decode.gpus=-1", (path("decode", "gpus"),)),
    Wrong("decode.gpuMemoryUtilization=90", (path("decode", "gpuMemoryUtilization"),)),
    Wrong("decode.multiNode.size=0", (path("decode", "multiNode", "size"),)),
    Wrong("decode.autoscaling.kvCacheUsage=180", (path("decode", "autoscaling", "kvCacheUsage"),)),
    Wrong("decode.autoscaling.minReplicas=0", (path("decode", "autoscaling", "minReplicas"),)),
    Wrong("decode.disruptionBudget=0", (path("decode", "disruptionBudget"),)),
    Wrong("models=null", ("missing property 'models'",)),
    Wrong("decode=null", ("missing property 'decode'",)),
    Wrong("router.policy=null", (path("router"), "policy")),
    Wrong("models[0].name=Demo", (path("models", "0"), "name")),
    Wrong("models[0].name=demo", (path("models", "0"), "source")),
    Wrong("models[0].name=demo,models[0].source.type=disk", (path("models", "0", "source", "type"), "bundled", "claim")),
    Wrong("models[0].name=demo,models[0].source.type=bundled,models[0].decode.gpu=1", (path("models", "0", "decode"), "gpu")),
    Wrong("models[0].name=demo,models[0].source.type=bundled,models[0].servedName=/demo", (path("models", "0", "servedName"),)),
    Wrong("models[0].name=demo,models[0].source.type=bundled,models[0].dtype=int8", (path("models", "0", "dtype"), "bfloat16")),
    Wrong("models[0].name=demo,models[0].source.type=bundled,models[0].quantization=exl2", (path("models", "0", "quantization"), "awq", "int4")),
    Wrong("models[0].name=m,models[0].source.type=hub,models[0].source.repository=m:Q4_K_M", (path("models", "0", "source", "repository"), "m:Q4_K_M")),
    Wrong("gateway.service.type=Ingress", (path("gateway", "service", "type"), "LoadBalancer")),
    Wrong("gateway.service.port=70000", (path("gateway", "service", "port"),)),
    Wrong("kvstore.heartbeatInterval=0", (path("kvstore", "heartbeatInterval"),)),
    Wrong("redis.type=cluster", (path("redis", "type"), "external")),
    Wrong("redis.host=redis://redis", (path("redis", "host"),)),
    Wrong("auth.apiKeys={a key}", (path("auth", "apiKeys", "0"),)),
    Wrong("meshTls.duration=1d", (path("meshTls", "duration"),)),
    Wrong("tracing.otlpEndpoint=collector", (path("tracing", "otlpEndpoint"),)),
    Wrong("tracing.protocol=http/json", (path("tracing", "protocol"), "http/protobuf")),
    Wrong("monitoring.type=prometheus", (path("monitoring", "type"), "podMonitor")),
    Wrong("autoscaling.prometheusAddress=prometheus:9090", (path("autoscaling", "prometheusAddress"),)),
    Wrong("logLevel=trace", (path("logLevel"), "debug")),
    Wrong("listenAddress=127.0.0.1", (path("listenAddress"),)),
    Wrong("networkPolicy.clientsFrom[0].cidr=10.0.0.0/8", (path("networkPolicy", "clientsFrom", "0"), "cidr")),
    Wrong("image.repository=x y", (path("image", "repository"), "'x y'")),
    Wrong("image.repository=ghcr.io/pagemesh/", (path("image", "repository"),)),
    Wrong("image.repository=https://ghcr.io/pagemesh", (path("image", "repository"),)),
    Wrong("redis.image=valkey 8", (path("redis", "image"),)),
    Wrong("models[0].name=demo,models[0].source.type=image,models[0].source.image=a b", (path("models", "0", "source", "image"),)),
    Wrong("router.podLabels.my team=search", ("invalid propertyName 'my team'",)),
    Wrong("image.pullPolicy=Sometimes", (path("image", "pullPolicy"), "IfNotPresent")),
    Wrong("hub.endpoint=hub.example.com", (path("hub", "endpoint"),)),
    Wrong("modelCache.accessModes={Everybody}", (path("modelCache", "accessModes", "0"),)),
    Wrong("kernelCache.type=hostPath", (path("kernelCache", "type"),)),
)  # fmt: skip

ONE = "models[0].name=a,models[0].source.type="
GIVEN_MESH = "meshTls.enabled=true,meshTls.provider=secrets," + ",".join(
    f"meshTls.secretNames.{role}=s" for role in ROLES
)
TWO = "models[0].name=a,models[0].source.type=bundled,models[0].source.path=/a,models[1].name=b,models[1].source.type="
BY_CHART = (
    Wrong("kvstore.replicas=2", ("kvstore.replicas is 2", "redis.type is none")),
    Wrong("redis.type=external", ("redis.host is empty",)),
    Wrong("redis.host=elsewhere", ('redis.host is "elsewhere"', "redis.type is none")),
    Wrong("redis.type=bundled,redis.tls=true", ("redis.tls is true",)),
    Wrong("redis.type=bundled,redis.existingSecret=x", ("redis.existingSecret",)),
    Wrong("redis.type=bundled,redis.port=6380", ("redis.port is 6380", "redis.type is bundled")),
    Wrong("redis.port=6380", ("redis.port is 6380", "redis.type is none")),
    Wrong("redis.database=2", ("redis.database is 2", "redis.type is none")),
    Wrong(ONE + "bundled", ("models[0].source.path is empty",)),
    Wrong(ONE + "bundled,models[0].source.path=a", ('models[0].source.path is "a"',)),
    Wrong(ONE + "hub", ("models[0].source.repository is empty",)),
    Wrong(ONE + "claim", ("models[0].source.claimName is empty",)),
    Wrong(ONE + "image", ("models[0].source.image is empty",)),
    Wrong(ONE + "init,models[0].source.image=x:1", ("models[0].source.path is empty",)),
    Wrong(ONE + "claim,models[0].source.claimName=c,models[0].source.revision=main", ("models[0].source.revision", "hub")),
    Wrong(TWO + "hub,models[1].source.repository=org/b,models[1].source.revision=v1", ("models[1].source.revision", "several models")),
    Wrong(TWO + "bundled,models[1].source.path=/b,models[1].name=a", ('models[1].name is "a"',)),
    Wrong(TWO + "bundled,models[1].source.path=/b,models[1].servedName=a", ('models[1].servedName is "a"',)),
    Wrong(TWO + "bundled,models[1].source.path=/b,router.generationConfig=/f", ('router.generationConfig is "/f"', "several models")),
    Wrong("router.modelAliases={chat=demu}", ("router.modelAliases", '"demu"', "demo")),
    Wrong("router.modelAliases={demo=demo}", ("router.modelAliases", "is a model itself")),
    Wrong("decode.maxNumSeqs=600", ("decode.maxNumBatchedTokens is 512", "decode.maxNumSeqs, 600")),
    Wrong(ONE + "bundled,models[0].source.path=/a,models[0].prefill.maxNumBatchedTokens=8", ("models[0].prefill.maxNumBatchedTokens is 8",)),
    Wrong(ONE + "bundled,models[0].source.path=/a,models[0].kvCacheDtype=int8,decode.gpus=1", ("models[0].kvCacheDtype is int8", "decode.gpus is 1")),
    Wrong("decode.maxSurge=0", ("decode.maxSurge", "decode.maxUnavailable")),
    Wrong("gateway.maxRequestTime=600", ("gateway.maxRequestTime is 600", "router.requestTimeout")),
    Wrong("decode.extraArgs={--grace-period,60s}", ("decode.extraArgs has --grace-period",)),
    Wrong("decode.extraArgs={--model=/x}", ("decode.extraArgs has --model",)),
    Wrong("decode.extraArgs={--quantization=int4}", ("decode.extraArgs has --quantization",)),
    Wrong("router.extraArgs={--api-key,secret}", ("router.extraArgs has --api-key",)),
    Wrong("gateway.extraArgs={--port=1}", ("gateway.extraArgs has --port",)),
    Wrong("kvstore.extraArgs={--index,memory}", ("kvstore.extraArgs has --index",)),
    Wrong("auth.apiKeys={a},auth.existingSecret=b", ("auth.apiKeys and auth.existingSecret",)),
    Wrong("auth.keyFile=x,auth.keyFileSecret=b", ("auth.keyFile and auth.keyFileSecret",)),
    Wrong("hub.token=a,hub.existingSecret=b", ("hub.token and hub.existingSecret",)),
    Wrong("meshTls.enabled=true,meshTls.provider=secrets", ("meshTls.secretNames.router is empty",)),
    Wrong("clientTls.enabled=true", ("clientTls.secretName is empty",)),
    Wrong("clientTls.enabled=true,clientTls.secretName=a,clientTls.issuer.name=b", ("clientTls.dnsNames is empty",)),
    Wrong("clientTls.secretName=a", ("clientTls.secretName is given", "clientTls.enabled is false")),
    Wrong("clientTls.clientCaSecret=a", ("clientTls.clientCaSecret is given", "clientTls.enabled is false")),
    Wrong("clientTls.dnsNames={a}", ("clientTls.dnsNames is given", "clientTls.enabled is false")),
    Wrong("clientTls.issuer.name=a", ("clientTls.issuer.name is given", "clientTls.enabled is false")),
    Wrong("clientTls.enabled=true,clientTls.secretName=a,gateway.enabled=false", ("clientTls.enabled is true", "gateway.enabled is false")),
    Wrong("meshTls.secretNames.router=a", ("meshTls.secretNames.router is given", "meshTls.enabled is false")),
    Wrong("meshTls.enabled=true,meshTls.secretNames.health=a", ("meshTls.secretNames.health is given", "meshTls.provider is certManager")),
    Wrong("meshTls.issuer.name=a", ("meshTls.issuer.name is given", "meshTls.enabled is false")),
    Wrong(GIVEN_MESH + ",meshTls.issuer.name=a", ("meshTls.issuer.name is given", "meshTls.provider is secrets")),
    Wrong("hub.token=a", ("hub.token is given", "no model's source.type is hub")),
    Wrong("hub.existingSecret=a", ("hub.existingSecret is given", "no model's source.type is hub")),
    Wrong("hub.endpoint=https://hub.example.com", ("hub.endpoint is given", "no model's source.type is hub")),
    Wrong("gatewayApi.parentRefs[0].name=g", ("gatewayApi.parentRefs is given", "gatewayApi.enabled is false")),
    Wrong("gatewayApi.hostnames={a.example}", ("gatewayApi.hostnames is given", "gatewayApi.enabled is false")),
    Wrong("inferenceExtension.objectives[0].name=a,inferenceExtension.objectives[0].priority=1", ("inferenceExtension.objectives is given", "inferenceExtension.enabled is false")),
    Wrong("inferenceExtension.endpointPicker.name=a", ("inferenceExtension.endpointPicker.name is given", "inferenceExtension.enabled is false")),
    Wrong("autoscaling.provider=keda", ("autoscaling.prometheusAddress is empty",)),
    Wrong("decode.autoscaling.enabled=true,decode.autoscaling.minReplicas=5", ("decode.autoscaling.minReplicas is 5",)),
    Wrong(ONE + "bundled,models[0].source.path=/a,models[0].servedName=org/a,decode.autoscaling.enabled=true", ("decode.autoscaling.queuedRequests", '"org/a"')),
    Wrong("prefill.autoscaling.enabled=true,prefill.autoscaling.waitingRequests=0,prefill.autoscaling.kvCacheUsage=0", ("prefill.autoscaling.enabled",)),
    Wrong("router.autoscaling.enabled=true,router.resources.requests.cpu=null", ("router.resources.requests.cpu",)),
    Wrong("gatewayApi.enabled=true", ("gatewayApi.parentRefs is empty",)),
    Wrong("gatewayApi.enabled=true,gatewayApi.parentRefs[0].name=g,gateway.enabled=false", ("gatewayApi.http is true", "gateway.enabled is false")),
    Wrong("gatewayApi.enabled=true,gatewayApi.parentRefs[0].name=g,gatewayApi.grpc=true,gatewayApi.grpcBackend=router", ("networkPolicy.grpcClientsFrom is empty",)),
    Wrong("gatewayApi.enabled=true,gatewayApi.parentRefs[0].name=g,gatewayApi.grpc=true,gatewayApi.grpcBackend=router,meshTls.enabled=true", ("gatewayApi.grpcBackend is router", "meshTls.enabled")),
    Wrong("inferenceExtension.enabled=true", ("inferenceExtension.enabled is true", "gatewayApi.enabled")),
    Wrong("inferenceExtension.enabled=true,gatewayApi.enabled=true,gatewayApi.parentRefs[0].name=g", ("inferenceExtension.endpointPicker.name is empty",)),
)  # fmt: skip


def values_from(expression: str) -> dict[str, Any]:
    return helm.parse_set_string(expression)


@pytest.mark.parametrize("wrong", BY_SCHEMA, ids=lambda wrong: wrong.values)
def test_the_schema_refuses_a_wrong_value_by_its_key(wrong: Wrong) -> None:
    with pytest.raises(helm.HelmValuesError) as refusal:
        Rendered(values_from(wrong.values))
    assert [word for word in wrong.words if word not in str(refusal.value)] == []


@pytest.mark.parametrize("wrong", BY_CHART, ids=lambda wrong: wrong.values)
def test_values_that_do_not_fit_together_are_refused_by_their_keys(wrong: Wrong) -> None:
    with pytest.raises(helm.HelmRenderError) as refusal:
        Rendered(values_from(wrong.values))
    assert [word for word in wrong.words if word not in str(refusal.value)] == []


COMMON = ("name", "instance", "component", "version", "part-of", "managed-by")
SELECTED_BY = ("name", "instance", "component")


@pytest.mark.parametrize(
    ("key", "label"),
    [
        *[("commonLabels", f"app.kubernetes.io/{name}") for name in COMMON],
        ("commonLabels", "helm.sh/chart"),
        ("commonLabels", "pagemesh/model"),
        ("monitoring.labels", "app.kubernetes.io/managed-by"),
        *[(f"{role}.podLabels", "pagemesh/model") for role in ROLES],
        *[("decode.podLabels", f"app.kubernetes.io/{name}") for name in SELECTED_BY],
    ],
)
def test_a_label_that_the_chart_sets_is_refused_by_its_name(key: str, label: str) -> None:
    escaped = label.replace(".", r"\.")
    with pytest.raises(helm.HelmRenderError) as refusal:
        Rendered(values_from(f"{key}.{escaped}=mine"))
    assert f"{key} has {label}, which the chart sets itself" in str(refusal.value)


def test_a_models_own_workers_get_no_label_that_selects_pods() -> None:
    own = {"podLabels": {"app.kubernetes.io/component": "mine"}}
    model = {"name": "a", "source": {"type": "bundled", "path": "/a"}, "prefill": own}
    with pytest.raises(helm.HelmRenderError, match=r"models\[0\]\.prefill\.podLabels has app"):
        Rendered({"models": [model]})


@pytest.mark.parametrize("repository", ["pagemesh", "localhost:5000", "[fd00::1]:5000/a/b_c-d.e"])
def test_every_folder_of_a_registry_is_taken(repository: str) -> None:
    rendered = Rendered({"image": {"repository": repository}})
    assert rendered.container("router")["image"].startswith(f"{repository}/router:")


def test_an_image_volume_is_refused_where_kubernetes_has_none(tmp_path: Path) -> None:
    # Helm renders for one version of Kubernetes here, so a copy of the chart asks for a later one.
    copy = tmp_path / "pagemesh"
    shutil.copytree(CHART, copy)
    checks = copy / "templates/_checks.tpl"
    text = checks.read_text(encoding="utf-8")
    assert text.count("<1.31-0") == 1
    checks.write_text(text.replace("<1.31-0", "<1.99-0"), encoding="utf-8")
    values = values_from(ONE + "image,models[0].source.image=models:1")
    with pytest.raises(
        helm.HelmRenderError, match=r"models\[0\].source.type is image, but Kubernetes"
    ):
        helm.Chart.load(copy).render(values, name="mesh")
    Rendered(values)


def test_a_kubernetes_that_is_too_old_is_refused() -> None:
    assert chart().metadata["kubeVersion"] == ">=1.28.0-0"


def test_a_refusal_shows_no_key() -> None:
    with pytest.raises(helm.HelmRenderError) as refusal:
        Rendered({"auth": {"apiKeys": ["sk-secret"], "keyFile": "tenants: {}"}})
    assert "sk-secret" not in str(refusal.value)
