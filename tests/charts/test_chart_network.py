"""Network policies allow the arrows of the architecture, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.charts.policies import Arrow, Pod, arrows
from tests.charts.rendering import NAMESPACE, RELEASE, ROLES, Rendered

PORTS = [4317, 443, 53, 5353, 6379, 8000, 9000, 9090]
MESH = {
    Arrow("gateway", "router", 9000),
    Arrow("router", "router", 9000),
    Arrow("router", "decode", 9000),
    Arrow("router", "kvstore", 9000),
    Arrow("decode", "prefill", 9000),
    Arrow("decode", "decode", 9000),
    Arrow("decode", "kvstore", 9000),
    Arrow("prefill", "prefill", 9000),
    Arrow("prefill", "decode", 9000),
    Arrow("prefill", "kvstore", 9000),
}
"""Prefill, Session, Lookup, Publish, Metrics of routers, and Fetch between workers of both kinds."""


def pod(role: str) -> Pod:
    labels = {
        "app.kubernetes.io/name": "pagemesh",
        "app.kubernetes.io/instance": RELEASE,
        "app.kubernetes.io/component": role,
    }
    return Pod(role, labels, NAMESPACE, {"kubernetes.io/metadata.name": NAMESPACE})


def elsewhere(name: str, namespace: str, **labels: str) -> Pod:
    return Pod(name, labels, namespace, {"kubernetes.io/metadata.name": namespace})


STRANGER = elsewhere("stranger", "other", app="stranger")
NEIGHBOUR = Pod("neighbour", {"app": "x"}, NAMESPACE, {"kubernetes.io/metadata.name": NAMESPACE})
OTHER_RELEASE = Pod(
    "other-release",
    {**pod("decode").labels, "app.kubernetes.io/instance": "another"},
    NAMESPACE,
    {"kubernetes.io/metadata.name": NAMESPACE},
)
PROMETHEUS = elsewhere("prometheus", "monitoring", app="prometheus")
DNS = elsewhere("dns", "kube-system", app="dns")
NODE_CACHE = Pod("node-cache", {}, "", {}, address="169.254.20.10")
NAMES = {53, 5353}
"""Ports that names are asked for at; a Service's 53 is 5353 at OpenShift's pods."""


def allowed(values: dict[str, Any], *others: Pod) -> set[Arrow]:
    """Connections of which at least one end is a pod of the mesh."""
    policies = Rendered(values).of_kind("NetworkPolicy")
    ours = [pod(role) for role in ROLES]
    names = {each.name for each in ours}
    found = set(arrows(policies, [*ours, *others], PORTS))
    return {arrow for arrow in found if {arrow.source, arrow.target} & names}


def between(values: dict[str, Any], *others: Pod) -> set[Arrow]:
    """The allowed connections that ask for no names."""
    return {arrow for arrow in allowed(values, *others) if arrow.port not in NAMES}


def test_the_processes_reach_whom_they_call_and_nobody_else() -> None:
    assert between({}) == MESH


@pytest.mark.parametrize("direction", ["Ingress", "Egress"])
def test_each_side_alone_allows_no_more(direction: str) -> None:
    policies = Rendered().of_kind("NetworkPolicy")
    found = set(arrows(policies, [pod(role) for role in ROLES], PORTS, direction))
    # Everybody may ask for names, of whoever answers, and everybody may ask a gateway.
    public = {arrow for arrow in found if arrow.port in NAMES or arrow.target == "gateway"}
    assert found - public == MESH
    assert {arrow.port for arrow in public} == ({8000} if direction == "Ingress" else NAMES)


def test_strangers_neighbours_and_other_releases_reach_the_gateway_alone() -> None:
    found = between({}, STRANGER, NEIGHBOUR, OTHER_RELEASE) - MESH
    assert found == {
        Arrow("stranger", "gateway", 8000),
        Arrow("neighbour", "gateway", 8000),
        Arrow("other-release", "gateway", 8000),
    }


def test_only_named_clients_reach_the_gateway_when_some_are_named() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}
    values = {"networkPolicy": {"clientsFrom": [peer]}}
    found = between(values, STRANGER, NEIGHBOUR, pod("test")) - MESH
    # The pod of `helm test` is a client, too.
    assert found == {Arrow("stranger", "gateway", 8000), Arrow("test", "gateway", 8000)}


def test_grpc_clients_reach_routers_only_when_they_are_named() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}
    found = between({"networkPolicy": {"grpcClientsFrom": [peer]}}, STRANGER) - MESH
    assert Arrow("stranger", "router", 9000) in found
    assert {arrow.target for arrow in found} == {"router", "gateway"}


def names_from(values: dict[str, Any], *others: Pod) -> set[Arrow]:
    """Whom the processes may ask for names, outside of the mesh."""
    names = {other.name for other in others}
    return {arrow for arrow in allowed(values, *others) if arrow.target in names}


def test_every_process_may_ask_for_names() -> None:
    assert names_from({}, DNS) == {Arrow(role, "dns", port) for role in ROLES for port in NAMES}


def test_every_process_may_ask_a_cache_of_its_node_for_names_and_for_nothing_else() -> None:
    assert names_from({}, NODE_CACHE) == {Arrow(role, "node-cache", 53) for role in ROLES}


def test_nobody_answers_for_names_in_the_mesh_itself() -> None:
    assert {arrow for arrow in allowed({}, DNS, NODE_CACHE) if arrow.port in NAMES} == names_from(
        {}, DNS, NODE_CACHE
    )


def test_names_are_asked_for_only_where_they_are_said_to_be() -> None:
    labels = {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}
    pods = {"networkPolicy": {"dnsTo": [{"namespaceSelector": labels}]}}
    everybody = (DNS, STRANGER, NODE_CACHE)
    assert {arrow.target for arrow in names_from(pods, *everybody)} == {"dns"}
    node = {"networkPolicy": {"dnsTo": [{"ipBlock": {"cidr": "169.254.20.10/32"}}]}}
    assert {arrow.target for arrow in names_from(node, *everybody)} == {"node-cache"}


@pytest.mark.parametrize("kind", ["podMonitor", "serviceMonitor"])
def test_prometheus_reads_metrics_of_every_process(kind: str) -> None:
    found = between({"monitoring": {"type": kind}}, PROMETHEUS, STRANGER) - MESH
    clients = {Arrow(name, "gateway", 8000) for name in ("prometheus", "stranger")}
    assert found - clients == {Arrow("prometheus", role, 9090) for role in ROLES}


def test_nobody_reads_metrics_without_monitoring() -> None:
    assert 9090 not in {arrow.port for arrow in allowed({}, PROMETHEUS)}


def test_traces_go_where_the_collector_is() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    values: dict[str, Any] = {"tracing": {"otlpEndpoint": "http://collector.monitoring:4317"}}
    anywhere = {arrow for arrow in allowed(values, PROMETHEUS, STRANGER) if arrow.port == 4317}
    assert anywhere >= {Arrow(role, "stranger", 4317) for role in ROLES}
    values["networkPolicy"] = {"tracesTo": [peer]}
    there = {arrow for arrow in allowed(values, PROMETHEUS, STRANGER) if arrow.port == 4317}
    assert there == {Arrow(role, "prometheus", 4317) for role in ROLES}


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [
        ("https://traces.example/v1/4317", 443),
        ("http://traces", 80),
        ("http://traces:4318/v1/traces", 4318),
        ("traces:4317", 4317),
    ],
)
def test_the_port_of_traces_is_that_of_their_url(endpoint: str, port: int) -> None:
    policy = Rendered({"tracing": {"otlpEndpoint": endpoint}}).one("NetworkPolicy", "kvstore")
    found = [rule["ports"] for rule in policy["spec"]["egress"]]
    assert [{"port": port, "protocol": "TCP"}] in found


def test_only_who_reads_models_reaches_the_hub_and_only_when_models_come_from_it() -> None:
    assert 443 not in {arrow.port for arrow in allowed({}, STRANGER)}
    hub = [{"name": "m", "source": {"type": "hub", "repository": "org/m"}}]
    found = {arrow for arrow in allowed({"models": hub}, STRANGER) if arrow.port == 443}
    assert found == {Arrow(role, "stranger", 443) for role in ("router", "prefill", "decode")}


def test_init_containers_reach_a_bucket_unless_told_otherwise() -> None:
    source = {"type": "init", "image": "x:1", "command": ["fetch"]}
    values: dict[str, Any] = {"models": [{"name": "m", "source": source}]}
    assert Arrow("decode", "stranger", 443) in allowed(values, STRANGER)
    values["networkPolicy"] = {"initPort": 0}
    assert Arrow("decode", "stranger", 443) not in allowed(values, STRANGER)


def test_only_kvstores_reach_redis() -> None:
    redis = Pod("valkey", pod("redis").labels, NAMESPACE, pod("redis").namespace_labels)
    values = {"redis": {"type": "bundled"}, "kvstore": {"replicas": 2}}
    found = {arrow for arrow in allowed(values, redis, STRANGER, NEIGHBOUR) if arrow.port == 6379}
    assert found == {Arrow("kvstore", "valkey", 6379)}
    assert [arrow for arrow in allowed(values, redis) if arrow.source == "valkey"] == []


def test_an_external_redis_is_reached_by_kvstores_alone() -> None:
    values = {"redis": {"type": "external", "host": "redis"}}
    found = {arrow for arrow in allowed(values, STRANGER) if arrow.port == 6379}
    assert found == {Arrow("kvstore", "stranger", 6379)}


def test_a_doctor_that_is_named_asks_every_process() -> None:
    peer = {"podSelector": {"matchLabels": {"app": "x"}}}
    found = between({"networkPolicy": {"doctorFrom": [peer]}}, NEIGHBOUR) - MESH
    assert {arrow.target for arrow in found if arrow.port == 9000} == set(ROLES)


def test_policies_can_be_turned_off() -> None:
    values = {"networkPolicy": {"enabled": False}, "redis": {"type": "bundled"}}
    assert Rendered(values).of_kind("NetworkPolicy") == []
