"""What network policies let through: who may connect to whom, as a cluster's network would decide it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple

Labels = Mapping[str, str]


class Pod(NamedTuple):
    """A pod, or an address that is no pod's, such as a node's: no label selects that, not even an empty selector."""

    name: str
    labels: Labels
    namespace: str
    namespace_labels: Labels
    address: str = ""
    """Of what is no pod."""


class Arrow(NamedTuple):
    """A connection that is allowed."""

    source: str
    target: str
    port: int


def _selects(selector: Mapping[str, Any] | None, labels: Labels) -> bool:
    """An empty selector selects everything; only matchLabels are understood."""
    selector = selector or {}
    assert set(selector) <= {"matchLabels"}
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def _is_in(block: Mapping[str, Any] | None, address: str) -> bool:
    """Pods' own addresses are the network's business, so blocks are only for what is no pod."""
    if block is None:
        return False
    cidrs = [block["cidr"], *block.get("except", [])]
    inside, *excepted = [ip_address(address) in ip_network(cidr) for cidr in cidrs]
    return inside and not any(excepted)


def _is_peer(peer: Mapping[str, Any], pod: Pod, own_namespace: str) -> bool:
    if pod.address or "ipBlock" in peer:
        return bool(pod.address) and _is_in(peer.get("ipBlock"), pod.address)
    if "namespaceSelector" in peer:
        if not _selects(peer["namespaceSelector"], pod.namespace_labels):
            return False
    elif pod.namespace != own_namespace:
        return False
    return _selects(peer.get("podSelector"), pod.labels)


def _allows(rules: list[Any], peers: str, other: Pod, port: int, namespace: str) -> bool:
    """A rule without ports or peers is for all of them."""
    return any(
        (not rule.get("ports") or any(each["port"] == port for each in rule["ports"]))
        and (not rule.get(peers) or any(_is_peer(each, other, namespace) for each in rule[peers]))
        for rule in rules
    )


def _one_side(policies: list[Any], pod: Pod, direction: str, other: Pod, port: int) -> bool:
    """Whether a pod's own policies let it; everything goes where none is for it."""
    peers = "from" if direction == "Ingress" else "to"
    chosen = [
        policy
        for policy in policies
        if policy["metadata"]["namespace"] == pod.namespace
        and direction in policy["spec"]["policyTypes"]
        and _selects(policy["spec"]["podSelector"], pod.labels)
    ]
    rules = [rule for policy in chosen for rule in policy["spec"].get(direction.lower()) or []]
    return not chosen or _allows(rules, peers, other, port, pod.namespace)


def arrows(
    policies: list[Any], pods: list[Pod], ports: list[int], direction: str | None = None
) -> Iterator[Arrow]:
    """Every connection between pods that both sides allow, or the side that a direction names."""
    for source in pods:
        for target in pods:
            for port in ports:
                sends = direction == "Ingress" or _one_side(
                    policies, source, "Egress", target, port
                )
                takes = direction == "Egress" or _one_side(
                    policies, target, "Ingress", source, port
                )
                if sends and takes:
                    yield Arrow(source.name, target.name, port)
