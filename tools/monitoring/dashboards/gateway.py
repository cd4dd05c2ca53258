"""The gateways: what comes in, what goes out, and how the routers are behind them."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics import envoy
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
                    [Target(SHOWN.rate(envoy.REQUESTS, by=["instance"]), "{{instance}}")],
                    [envoy.REQUESTS],
                    unit=REQUESTS_PER_SECOND,
                ),
                Panel(
                    "Answers by status",
                    [
                        Target(
                            SHOWN.rate(envoy.RESPONSES, by=["envoy_response_code_class"]),
                            "{{envoy_response_code_class}}xx",
                        )
                    ],
                    [envoy.RESPONSES],
                    unit=REQUESTS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    "Answered here, given up, late",
                    [
                        Target(SHOWN.rate(envoy.DIRECT_RESPONSES), "answered by the gateway"),
                        Target(SHOWN.rate(envoy.CLIENT_RESETS), "given up by clients"),
                        Target(SHOWN.rate(envoy.REQUEST_TIMEOUTS), "bodies too late"),
                    ],
                    [envoy.DIRECT_RESPONSES, envoy.CLIENT_RESETS, envoy.REQUEST_TIMEOUTS],
                    unit=REQUESTS_PER_SECOND,
                ),
                Panel(
                    "Time of requests",
                    [
                        Target(SHOWN.quantile(share, envoy.REQUEST_TIME), f"p{share * 100:g}")
                        for share in (0.5, 0.95, 0.99)
                    ],
                    [envoy.REQUEST_TIME],
                    unit=MILLISECONDS,
                ),
                Panel(
                    "Open",
                    [
                        Target(SHOWN.total(envoy.REQUESTS_ACTIVE), "requests"),
                        Target(SHOWN.total(envoy.CONNECTIONS_ACTIVE), "connections"),
                    ],
                    [envoy.REQUESTS_ACTIVE, envoy.CONNECTIONS_ACTIVE],
                    unit="short",
                ),
                Panel(
                    "Bytes",
                    [
                        Target(SHOWN.rate(envoy.BYTES_IN), "in"),
                        Target(SHOWN.rate(envoy.BYTES_OUT), "out"),
                    ],
                    [envoy.BYTES_IN, envoy.BYTES_OUT],
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
                        Target(SHOWN.series(envoy.ROUTERS_HEALTHY), "serving, {{instance}}"),
                        Target(SHOWN.series(envoy.ROUTERS_KNOWN), "known, {{instance}}"),
                    ],
                    [envoy.ROUTERS_HEALTHY, envoy.ROUTERS_KNOWN],
                ),
                Panel(
                    "Answers of routers by status",
                    [
                        Target(
                            SHOWN.rate(envoy.ROUTER_ANSWERS, by=["envoy_response_code_class"]),
                            "{{envoy_response_code_class}}xx",
                        )
                    ],
                    [envoy.ROUTER_ANSWERS],
                    unit=REQUESTS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    "Retries and failures",
                    [
                        Target(SHOWN.rate(envoy.ROUTER_RETRIES), "requests sent again"),
                        Target(
                            SHOWN.rate(envoy.ROUTER_CONNECT_FAILURES), "connections that failed"
                        ),
                        Target(SHOWN.rate(envoy.HEALTH_FAILURES), "health checks that failed"),
                    ],
                    [envoy.ROUTER_RETRIES, envoy.ROUTER_CONNECT_FAILURES, envoy.HEALTH_FAILURES],
                    unit=PER_SECOND,
                ),
            ],
        ),
        Row(
            "Envoy itself",
            [
                Panel(
                    "Connections of clients",
                    [Target(SHOWN.rate(envoy.CONNECTIONS), "new per second")],
                    [envoy.CONNECTIONS],
                    unit=PER_SECOND,
                ),
                Panel(
                    "Memory",
                    [Target(SHOWN.series(envoy.MEMORY), "{{instance}}")],
                    [envoy.MEMORY],
                ),
                Panel(
                    "Up since",
                    [Target(SHOWN.series(envoy.UPTIME), "{{instance}}")],
                    [envoy.UPTIME, envoy.LIVE],
                ),
            ],
        ),
    ],
    has_models=False,
)
