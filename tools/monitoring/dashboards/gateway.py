"""The gateways: what comes in, what goes out, and how the routers are behind them."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics import gateway
from tools.monitoring.panel import (
    BYTES_PER_SECOND,
    MILLISECONDS,
    PER_SECOND,
    REQUESTS_PER_SECOND,
    SHOWN,
    Board,
    Panel,
    Row,
    Target,
)

BOARD: Final = Board(
    "pagemesh-gateway",
    "pagemesh / gateway",
    "What comes in, what goes out, and how the routers are behind it; of gateways with --metrics-port.",
    [
        Row(
            "Clients",
            [
                Panel(
                    "Requests that began",
                    [Target(SHOWN.rate(gateway.REQUESTS, by=["instance"]), "{{instance}}")],
                    [gateway.REQUESTS],
                    unit=REQUESTS_PER_SECOND,
                ),
                Panel(
                    "Answers by status",
                    [
                        Target(
                            SHOWN.rate(gateway.RESPONSES, by=["envoy_response_code_class"]),
                            "{{envoy_response_code_class}}xx",
                        )
                    ],
                    [gateway.RESPONSES],
                    unit=REQUESTS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    "Answered here, given up, late",
                    [
                        Target(SHOWN.rate(gateway.DIRECT_RESPONSES), "answered by the gateway"),
                        Target(SHOWN.rate(gateway.CLIENT_RESETS), "given up by clients"),
                        Target(SHOWN.rate(gateway.REQUEST_TIMEOUTS), "bodies too late"),
                    ],
                    [gateway.DIRECT_RESPONSES, gateway.CLIENT_RESETS, gateway.REQUEST_TIMEOUTS],
                    unit=REQUESTS_PER_SECOND,
                ),
                Panel(
                    "Time of requests",
                    [
                        Target(SHOWN.quantile(share, gateway.REQUEST_TIME), f"p{share * 100:g}")
                        for share in (0.5, 0.95, 0.99)
                    ],
                    [gateway.REQUEST_TIME],
                    unit=MILLISECONDS,
                ),
                Panel(
                    "Open",
                    [
                        Target(SHOWN.total(gateway.REQUESTS_ACTIVE), "requests"),
                        Target(SHOWN.total(gateway.CONNECTIONS_ACTIVE), "connections"),
                    ],
                    [gateway.REQUESTS_ACTIVE, gateway.CONNECTIONS_ACTIVE],
                    unit="short",
                ),
                Panel(
                    "Bytes",
                    [
                        Target(SHOWN.rate(gateway.BYTES_IN), "in"),
                        Target(SHOWN.rate(gateway.BYTES_OUT), "out"),
                    ],
                    [gateway.BYTES_IN, gateway.BYTES_OUT],
                    unit=BYTES_PER_SECOND,
                ),
            ],
        ),
        Row(
            "Routers",
            [
                Panel(
                    "Routers that serve",
                    [
                        Target(SHOWN.series(gateway.ROUTERS_HEALTHY), "serving, {{instance}}"),
                        Target(SHOWN.series(gateway.ROUTERS_KNOWN), "known, {{instance}}"),
                    ],
                    [gateway.ROUTERS_HEALTHY, gateway.ROUTERS_KNOWN],
                ),
                Panel(
                    "Answers of routers by status",
                    [
                        Target(
                            SHOWN.rate(gateway.ROUTER_ANSWERS, by=["envoy_response_code_class"]),
                            "{{envoy_response_code_class}}xx",
                        )
                    ],
                    [gateway.ROUTER_ANSWERS],
                    unit=REQUESTS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    "Retries and failures",
                    [
                        Target(SHOWN.rate(gateway.ROUTER_RETRIES), "requests sent again"),
                        Target(
                            SHOWN.rate(gateway.ROUTER_CONNECT_FAILURES), "connections that failed"
                        ),
                        Target(SHOWN.rate(gateway.HEALTH_FAILURES), "health checks that failed"),
                    ],
                    [
                        gateway.ROUTER_RETRIES,
                        gateway.ROUTER_CONNECT_FAILURES,
                        gateway.HEALTH_FAILURES,
                    ],
                    unit=PER_SECOND,
                ),
            ],
        ),
        Row(
            "Envoy itself",
            [
                Panel(
                    "Connections of clients",
                    [Target(SHOWN.rate(gateway.CONNECTIONS), "new per second")],
                    [gateway.CONNECTIONS],
                    unit=PER_SECOND,
                ),
                Panel(
                    "Memory",
                    [Target(SHOWN.series(gateway.MEMORY), "{{instance}}")],
                    [gateway.MEMORY],
                ),
                Panel(
                    "Up since",
                    [Target(SHOWN.series(gateway.UPTIME), "{{instance}}")],
                    [gateway.UPTIME, gateway.LIVE],
                ),
            ],
        ),
    ],
    has_models=False,
)
