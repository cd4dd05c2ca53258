"""What `pagemesh up` tells its gateway."""

from __future__ import annotations

from pathlib import Path

from pagemesh.cli.arguments import parse
from pagemesh.cli.settings import UpConfig
from pagemesh.cli.up.plan import make_plan
from pagemesh.config import CorsConfig, GatewayConfig, HttpLimitsConfig, TlsConfig

RUN = Path("/run/pagemesh")
PORTS = range(20000, 21000)


def test_the_gateway_gets_what_clients_meet_and_the_url_says_https() -> None:
    tls, cors = TlsConfig("/c.pem", "/k.pem"), CorsConfig(("https://a",))
    limits = HttpLimitsConfig(max_body_size=7)
    planned = make_plan(
        UpConfig(host="::1", port=8443, client_tls=tls, cors=cors, limits=limits), PORTS, RUN, None
    )
    words = list(planned.parts[-1].command)
    gateway = parse(GatewayConfig, "", "", words[words.index("gateway") + 1 :])
    assert (gateway.tls, gateway.cors, gateway.limits) == (tls, cors, limits)
    assert gateway.local_socket == str(planned.local_socket)
    assert planned.url == "https://[::1]:8443"
    assert make_plan(UpConfig(), PORTS, RUN, None).url == "http://127.0.0.1:8000"
