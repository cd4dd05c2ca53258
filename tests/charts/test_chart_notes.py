"""The notes after an installation: how to ask the mesh where it is, and what is rarely meant."""

from __future__ import annotations

import re
import shlex
from typing import Any, NamedTuple

import pytest

from tests.charts.rendering import Rendered

TLS = {"enabled": True, "secretName": "clients"}
BALANCED = {"service": {"type": "LoadBalancer", "port": 443}}


def routed(*hosts: str) -> dict[str, Any]:
    return {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": list(hosts)}


def curl_of(notes: str) -> list[str]:
    """The words of the notes' only call, as a shell reads them."""
    [command] = re.findall(r"^  curl (?:.*\\\n)*.*$", notes, re.MULTILINE)
    return shlex.split(command)


class Way(NamedTuple):
    """How clients reach the gateway, and what the notes must then say."""

    name: str
    values: dict[str, Any]
    address: str
    lead: str
    """The words that lead to the address, of those in LEADS."""
    unchecked: bool = False
    """Whether curl has to be told not to check the certificate."""


FORWARD = "port-forward service/mesh-pagemesh-gateway 8000:8000"
FIND = "ADDRESS=$(kubectl -n llm get service mesh-pagemesh-gateway -o jsonpath="
ROUTE = "Clients reach it by the Gateway, at "
LEADS = (FORWARD, FIND, ROUTE)
WAYS = (
    Way("from-here", {}, "http://127.0.0.1:8000", FORWARD),
    Way("from-here-by-tls", {"clientTls": TLS}, "https://127.0.0.1:8000", FORWARD, True),
    Way("node-port", {"gateway": {"service": {"type": "NodePort"}}}, "http://127.0.0.1:8000", FORWARD),
    Way("load-balancer", {"gateway": BALANCED}, "http://$ADDRESS:443", FIND),
    Way("load-balancer-by-tls", {"gateway": BALANCED, "clientTls": TLS}, "https://$ADDRESS:443", FIND, True),
    Way("route", {"gatewayApi": routed("llm.example.com")}, "https://llm.example.com", ROUTE),
    Way("route-with-a-wildcard", {"gatewayApi": routed("*.a.example", "b.example", "c.example")}, "https://b.example", ROUTE),
    Way("route-with-wildcards-alone", {"gatewayApi": routed("*.a.example")}, "https://NAME.a.example", ROUTE),
    Way("route-and-load-balancer", {"gatewayApi": routed("b.example"), "gateway": BALANCED}, "https://b.example", ROUTE),
    # The Gateway shows a certificate of its own; the mesh's is between the two.
    Way("route-by-tls", {"gatewayApi": routed("b.example"), "clientTls": TLS}, "https://b.example", ROUTE),
    Way("route-without-names", {"gatewayApi": routed()}, "http://127.0.0.1:8000", FORWARD),
    Way("route-for-grpc", {"gatewayApi": {**routed("b.example"), "http": False, "grpc": True}}, "http://127.0.0.1:8000", FORWARD),
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_notes_name_one_address_and_ask_there(way: Way) -> None:
    notes = Rendered(way.values).notes
    assert [lead for lead in LEADS if lead in notes] == [way.lead]
    assert set(re.findall(r"https?://[^/\s]+", notes)) == {way.address}
    call = curl_of(notes)
    assert f"{way.address}/v1/chat/completions" in call
    assert ("-k" in call) == way.unchecked
    assert ("-k leaves it unchecked" in notes) == way.unchecked


def test_notes_name_the_hosts_of_the_certificate() -> None:
    tls = {**TLS, "issuer": {"name": "ours"}, "dnsNames": ["a.example", "b.example"]}
    assert "The certificate names a.example, b.example," in Rendered({"clientTls": tls}).notes


def test_notes_show_a_certificate_where_clients_need_one() -> None:
    tls = {**TLS, "clientCaSecret": "partners"}
    notes = Rendered({"clientTls": tls}).notes
    call = curl_of(notes)
    assert call[call.index("--cert") :][:4] == ["--cert", "client.crt", "--key", "client.key"]
    assert "from an authority in the secret partners" in notes
    assert "--cert" not in curl_of(Rendered({"clientTls": TLS}).notes)


def test_notes_say_how_to_ask_and_what_to_know() -> None:
    plain = Rendered().notes
    assert "kubectl -n llm port-forward service/mesh-pagemesh-gateway 8000:8000" in plain
    assert '"model": "demo"' in plain
    assert "auth is empty: everybody who reaches the gateway may call" in plain
    assert "authorization" not in plain
    closed = Rendered({"auth": {"existingSecret": "a"}, "meshTls": {"enabled": True}}).notes
    assert "authorization: Bearer $PAGEMESH_API_KEY" in closed
    assert "To know" not in closed


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"gateway": {"service": {"type": "LoadBalancer"}}},
            "gateway.service.type is LoadBalancer",
        ),
        ({"router": {"gracePeriod": 5}}, "router.gracePeriod is 5, less than"),
        ({"gateway": {"gracePeriod": 5}}, "gateway.gracePeriod is 5, less than"),
        ({"redis": {"type": "bundled"}}, "redis.type is bundled"),
        ({"networkPolicy": {"enabled": False}}, "networkPolicy.enabled is false"),
        (
            {
                "models": [
                    {"name": "m", "source": {"type": "hub", "repository": "org/m:Q4_K_M"}},
                ]
            },
            "router.startupTimeout is 300, less than decode.startupTimeout, 1800, and routers fetch"
            " the whole of org/m:Q4_K_M",
        ),
        ({"decode": {"gpus": 2}}, "gpus is 2 for decode of model demo"),
        ({"decode": {"replicas": 0}}, "replicas is 0 for decode of model demo"),
        ({"decode": {"maxSurge": 0, "maxUnavailable": 1}}, "an update leaves requests without"),
        ({"decode": {"multiNode": {"enabled": True}}}, "a whole copy of the model"),
        ({"decode": {"autoscaling": {"enabled": True}}}, "monitoring.type is none"),
    ],
)
def test_notes_warn_of_what_is_rarely_meant(values: dict[str, Any], words: str) -> None:
    assert words in Rendered(values).notes
    assert words not in Rendered().notes


@pytest.mark.parametrize(
    ("repository", "router"), [("org/m:Q4_K_M", {"startupTimeout": 1800}), ("org/m", {})]
)
def test_notes_do_not_warn_of_routers_that_have_time_for_what_they_fetch(
    repository: str, router: dict[str, Any]
) -> None:
    models = [{"name": "m", "source": {"type": "hub", "repository": repository}}]
    assert "startupTimeout" not in Rendered({"models": models, "router": router}).notes
