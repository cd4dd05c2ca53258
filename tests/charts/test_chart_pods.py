"""Pods are restricted, probed, given time to stop, and say why they do not start."""

from __future__ import annotations

from typing import Any

import pytest

from pagemesh.cli.arguments import parse
from pagemesh.cli.settings import HealthConfig
from pagemesh.config import RouterConfig
from tests.charts.rendering import ROLES, Rendered, environment, mounts, volumes

TLS = {"meshTls": {"enabled": True}}
TLS_FLAGS = [
    "--mesh-cert", "/etc/pagemesh/mesh-tls/tls.crt",
    "--mesh-key", "/etc/pagemesh/mesh-tls/tls.key",
    "--mesh-ca", "/etc/pagemesh/mesh-tls/ca.crt",
]  # fmt: skip


@pytest.mark.parametrize("role", ROLES)
def test_a_pod_keeps_to_the_restricted_standard(role: str) -> None:
    pod, container = Rendered().pod(role), Rendered().container(role)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert mounts(container)["/tmp"]["name"] == "tmp"


def test_init_containers_and_the_bundled_redis_are_restricted_too() -> None:
    source = {"type": "init", "image": "models:1", "path": "/m"}
    rendered = Rendered({"models": [{"name": "m", "source": source}], "redis": {"type": "bundled"}})
    [init] = rendered.pod("decode")["initContainers"]
    redis = rendered.one("Deployment", "redis")["spec"]["template"]["spec"]
    for security in (init["securityContext"], redis["containers"][0]["securityContext"]):
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
    assert redis["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize("role", ["router", "prefill", "decode", "kvstore"])
def test_processes_are_probed_by_grpc(role: str) -> None:
    container = Rendered().container(role)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["grpc"] == {"port": 9000}


@pytest.mark.parametrize("role", ["router", "prefill", "decode", "kvstore"])
def test_with_tls_the_image_asks_itself_as_the_kubelet_speaks_none(role: str) -> None:
    container = Rendered(TLS).container(role)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert "grpc" not in container[probe]
        # Understood by the command itself; its first argument is the address.
        _, command, address, *flags = container[probe]["exec"]["command"]
        parse(HealthConfig, f"pagemesh {command}", "", ["--address", address, *flags])
        assert container[probe]["exec"]["command"] == [
            "pagemesh", "health", "127.0.0.1:9000", *TLS_FLAGS
        ]  # fmt: skip


def test_a_gateway_is_ready_when_a_router_answers_and_alive_without() -> None:
    container = Rendered().container("gateway")
    assert container["readinessProbe"]["httpGet"] == {
        "path": "/version", "port": "http", "scheme": "HTTP"
    }  # fmt: skip
    assert container["livenessProbe"]["tcpSocket"] == {"port": "http"}


def test_a_gateway_with_tls_is_asked_by_tls_and_not_at_all_when_it_wants_certificates() -> None:
    client = {"enabled": True, "secretName": "clients"}
    asked = Rendered({"clientTls": client}).container("gateway")["readinessProbe"]
    assert asked["httpGet"]["scheme"] == "HTTPS"
    strict = Rendered({"clientTls": {**client, "clientCaSecret": "partners"}})
    assert strict.container("gateway")["readinessProbe"]["tcpSocket"] == {"port": "http"}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("grace", "sleep"), [(0, 0), (7, 3), (900, 0)])
def test_the_time_to_stop_is_above_that_of_the_process_and_its_sleep(
    role: str, grace: int, sleep: int
) -> None:
    rendered = Rendered({role: {"gracePeriod": grace, "preStopSleep": sleep}})
    assert rendered.flags(role)["--grace-period"] == [str(grace)]
    assert rendered.pod(role)["terminationGracePeriodSeconds"] == grace + sleep + 10
    hook = rendered.container(role).get("lifecycle", {}).get("preStop")
    assert hook == ({"exec": {"command": ["sleep", str(sleep)]}} if sleep else None)


def test_a_worker_may_take_as_long_to_start_as_it_is_told() -> None:
    probe = Rendered({"decode": {"startupTimeout": 3600}}).container("decode")["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] == 3600
    deployment = Rendered({"decode": {"startupTimeout": 3600}}).one("Deployment", "decode-demo")
    assert deployment["spec"]["progressDeadlineSeconds"] > 3600


@pytest.mark.parametrize("role", ROLES)
def test_the_last_words_of_a_process_are_shown_by_describe(role: str) -> None:
    assert Rendered().container(role)["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_a_missing_gpu_is_said_by_the_scheduler_or_by_the_worker() -> None:
    rendered = Rendered({"decode": {"gpus": 2}})
    container = rendered.container("decode")
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    # Not auto, by which a worker whose driver is missing would serve from the CPU in silence.
    assert rendered.flags("decode")["--device"] == ["cuda"]
    assert container["image"] == "ghcr.io/pagemesh/decode:0.1.0-cuda"
    assert rendered.container("prefill")["image"] == "ghcr.io/pagemesh/prefill:0.1.0"
    assert rendered.flags("prefill")["--device"] == ["cpu"]


def test_threads_are_left_to_the_worker_unless_given() -> None:
    assert "--threads" not in Rendered().flags("decode")
    assert Rendered({"decode": {"threads": 6}}).flags("decode")["--threads"] == ["6"]


def test_a_worker_says_how_others_reach_it_and_has_its_pods_name() -> None:
    flags = Rendered().flags("decode")
    assert flags["--advertise"] == ["$(POD_IP):9000"]
    assert flags["--worker-id"] == ["$(POD_NAME)"]
    assert Rendered({"listenAddress": "::"}).flags("decode")["--advertise"] == ["[$(POD_IP)]:9000"]


def test_pods_are_put_where_the_values_say() -> None:
    toleration = {"key": "gpu", "operator": "Exists"}
    affinity: dict[str, Any] = {"nodeAffinity": {}}
    pod = Rendered(
        {
            "decode": {
                "nodeSelector": {"gpu": "h100"},
                "tolerations": [toleration],
                "affinity": affinity,
                "priorityClassName": "serving",
                "gpus": 1,
                "runtimeClassName": "nvidia",
            }
        }
    ).pod("decode")
    assert pod["nodeSelector"] == {"gpu": "h100"}
    assert pod["tolerations"] == [toleration]
    assert pod["affinity"] == affinity
    assert pod["priorityClassName"] == "serving"
    assert pod["runtimeClassName"] == "nvidia"


def test_pods_of_a_model_are_spread_over_hosts() -> None:
    [spread] = Rendered().pod("decode")["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert spread["labelSelector"]["matchLabels"]["pagemesh/model"] == "demo"


@pytest.mark.parametrize("role", ROLES)
def test_drains_of_nodes_take_one_pod_of_a_role_at_a_time(role: str) -> None:
    rendered = Rendered()
    [budget] = [
        each
        for each in rendered.of_kind("PodDisruptionBudget")
        if each["metadata"]["labels"]["app.kubernetes.io/component"] == role
    ]
    assert budget["spec"]["maxUnavailable"] == 1
    [labels] = [
        each["metadata"]["labels"] for name, _, each in rendered.workloads() if name == role
    ]
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_selectors_do_not_change_with_versions_or_labels() -> None:
    for _, workload, _ in Rendered({"commonLabels": {"team": "a"}}).workloads():
        names = set(workload["spec"]["selector"]["matchLabels"])
        assert names <= {
            "app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component",
            "pagemesh/model",
        }  # fmt: skip


def test_of_a_label_that_is_given_twice_the_nearer_one_counts() -> None:
    values = {
        "commonLabels": {"team": "all", "cost": "a"},
        "router": {"podLabels": {"team": "routing"}},
        "monitoring": {"type": "podMonitor", "labels": {"team": "metrics"}},
    }
    rendered = Rendered(values)
    deployment = rendered.one("Deployment", "router")
    monitor = rendered.one("PodMonitor", "router")
    found = [
        each["metadata"]["labels"] for each in (deployment, deployment["spec"]["template"], monitor)
    ]
    assert [labels["team"] for labels in found] == ["all", "routing", "metrics"]
    assert [labels["cost"] for labels in found] == ["a", "a", "a"]


def test_updates_bring_the_new_pod_before_the_old_one_goes() -> None:
    strategy = Rendered().one("Deployment", "decode-demo")["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_traces_are_sent_by_every_process() -> None:
    rendered = Rendered({"tracing": {"otlpEndpoint": "http://collector:4317"}})
    for role in ROLES:
        variables = environment(rendered.container(role))
        assert variables["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == "http://collector:4317"
        assert variables["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == "grpc"
        assert "OTEL_EXPORTER_OTLP_TRACES_HEADERS" not in variables


def test_keys_of_a_receiver_of_traces_come_from_a_secret() -> None:
    url = "https://cloud.langfuse.com/api/public/otel/v1/traces"
    tracing = {"otlpEndpoint": url, "protocol": "http/protobuf", "existingSecret": "langfuse"}
    rendered = Rendered({"tracing": tracing})
    for role in ROLES:
        container = rendered.container(role)
        assert environment(container)["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == "http/protobuf"
        headers = {"name": "OTEL_EXPORTER_OTLP_TRACES_HEADERS"}
        reference = {"secretKeyRef": {"name": "langfuse", "key": "headers"}}
        assert {**headers, "valueFrom": reference} in container["env"]


def test_defaults_of_generation_reach_the_routers() -> None:
    values = {
        "generationConfig": "vllm",
        "overrideGenerationConfig": {"temperature": 0.5, "max_new_tokens": 100_000_000},
        "defaultChatTemplateKwargs": {"enable_thinking": False},
    }
    arguments = Rendered({"router": values}).container("router")["args"]
    router = parse(RouterConfig, "pagemesh router", "", arguments)
    overrides = {"temperature": 0.5, "max_new_tokens": 100_000_000}
    assert router.generation.generation_config == "vllm"
    assert router.generation.overrides == overrides
    assert router.chat.read_template_defaults() == {"enable_thinking": False}


def test_what_users_add_comes_last_where_it_wins() -> None:
    rendered = Rendered(
        {
            "router": {
                "extraArgs": ["--stream-interval", "4"],
                "extraEnv": [{"name": "TZ", "value": "UTC"}],
                "extraVolumes": [{"name": "x", "emptyDir": {}}],
                "extraVolumeMounts": [{"name": "x", "mountPath": "/x"}],
            }
        }
    )
    container = rendered.container("router")
    assert container["args"][-2:] == ["--stream-interval", "4"]
    assert environment(container)["TZ"] == "UTC"
    assert mounts(container)["/x"]["name"] == "x"
    assert volumes(rendered.pod("router"))["x"] == {"name": "x", "emptyDir": {}}
