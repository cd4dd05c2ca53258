"""What the gateway shows of itself: Envoy's own metrics, those of them that say something of this mesh.

Envoy's histograms are in milliseconds, and its counters have no `_total` but where that is part of the name.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from pagemesh.telemetry.metrics.specs import ForeignSpec, Label, Process, Unit

MANAGER: Final = "gateway"
"""Under which Envoy counts what clients ask for."""

CLUSTER: Final = "routers"
"""Under which Envoy counts what routers are asked for."""

_CLIENTS: Final = Label("envoy_http_conn_manager_prefix", (MANAGER,))
_ROUTERS: Final = Label("envoy_cluster_name", (CLUSTER,))
_STATUS: Final = Label("envoy_response_code_class", ("1", "2", "3", "4", "5"))

_envoy = partial(
    ForeignSpec, processes=(Process.GATEWAY,), origin="Envoy", only_with="--metrics-port"
)
_client = partial(_envoy, labels=(_CLIENTS,))
_router = partial(_envoy, labels=(_ROUTERS,))

REQUESTS: Final = _client(
    name="envoy_http_downstream_rq_total",
    kind="counter",
    unit=Unit.REQUESTS,
    help="Requests of clients that began.",
    look_at="who sends so many: the gateway's access log",
)
REQUESTS_ACTIVE: Final = _client(
    name="envoy_http_downstream_rq_active",
    kind="gauge",
    unit=Unit.REQUESTS,
    help="Requests of clients that have not ended.",
    look_at="pagemesh:requests_in_progress of the routers beside it: the difference is still being read",
)
RESPONSES: Final = _envoy(
    name="envoy_http_downstream_rq_xx",
    kind="counter",
    unit=Unit.REQUESTS,
    labels=(_CLIENTS, _STATUS),
    help="Answers to clients by the first digit of their status.",
    look_at="5: envoy_cluster_upstream_rq_xx tells whether routers gave them. 4: pagemesh:requests_refused, and the "
    "access log for what the gateway refused by itself",
)
REQUEST_TIME: Final = _client(
    name="envoy_http_downstream_rq_time",
    kind="histogram",
    unit=Unit.SECONDS,
    help="From a request's first byte to its answer's last, in milliseconds; streams count with all of their length.",
    look_at="vllm:e2e_request_latency_seconds beside it",
)
CLIENT_RESETS: Final = _client(
    name="envoy_http_downstream_rq_rx_reset",
    kind="counter",
    unit=Unit.REQUESTS,
    help="Requests that their clients gave up.",
    look_at="the time to the first token: clients mostly give up because they wait",
)
REQUEST_TIMEOUTS: Final = _client(
    name="envoy_http_downstream_rq_timeout",
    kind="counter",
    unit=Unit.REQUESTS,
    help="Requests whose body did not arrive in time (--body-timeout).",
    look_at="slow clients, in the access log",
)
DIRECT_RESPONSES: Final = _client(
    name="envoy_http_rq_direct_response",
    kind="counter",
    unit=Unit.REQUESTS,
    help="Requests that the gateway answered by itself: without a key, too large, with a wrong method.",
    look_at="the access log, which has the status of each",
)
CONNECTIONS: Final = _client(
    name="envoy_http_downstream_cx_total",
    kind="counter",
    unit=Unit.COUNT,
    help="Connections of clients.",
    look_at="clients that open one for each request",
)
CONNECTIONS_ACTIVE: Final = _client(
    name="envoy_http_downstream_cx_active",
    kind="gauge",
    unit=Unit.COUNT,
    help="Open connections of clients.",
    look_at="--max-connections: at that, further ones are closed",
)
BYTES_IN: Final = _client(
    name="envoy_http_downstream_cx_rx_bytes_total",
    kind="counter",
    unit=Unit.BYTES,
    help="Bytes that clients sent.",
    look_at="large bodies, in the access log",
)
BYTES_OUT: Final = _client(
    name="envoy_http_downstream_cx_tx_bytes_total",
    kind="counter",
    unit=Unit.BYTES,
    help="Bytes that clients were sent.",
    look_at="nothing: it grows with tokens",
)
ROUTERS_KNOWN: Final = _router(
    name="envoy_cluster_membership_total",
    kind="gauge",
    unit=Unit.COUNT,
    help="Routers that --routers names, by addresses.",
    look_at="nothing: it is what was deployed",
)
ROUTERS_HEALTHY: Final = _router(
    name="envoy_cluster_membership_healthy",
    kind="gauge",
    unit=Unit.COUNT,
    help="Of these, those that say that they serve.",
    look_at="nothing: when it is lower than the number of routers, their logs",
)
ROUTER_ANSWERS: Final = _envoy(
    name="envoy_cluster_upstream_rq_xx",
    kind="counter",
    unit=Unit.REQUESTS,
    labels=(_ROUTERS, _STATUS),
    help="Answers of routers by the first digit of their HTTP status, before gRPC's status is looked at.",
    look_at="5: the routers' logs",
)
ROUTER_RETRIES: Final = _router(
    name="envoy_cluster_upstream_rq_retry",
    kind="counter",
    unit=Unit.REQUESTS,
    help="Requests that were sent to another router, because one was away or about to stop.",
    look_at="restarts of routers",
)
ROUTER_CONNECT_FAILURES: Final = _router(
    name="envoy_cluster_upstream_cx_connect_fail",
    kind="counter",
    unit=Unit.COUNT,
    help="Connections to routers that failed.",
    look_at="whether the routers run, and certificates where they speak TLS",
)
HEALTH_FAILURES: Final = _router(
    name="envoy_cluster_health_check_failure",
    kind="counter",
    unit=Unit.COUNT,
    help="Health checks that a router failed, or did not answer.",
    look_at="as for envoy_cluster_membership_healthy",
)
LIVE: Final = _envoy(
    name="envoy_server_live",
    kind="gauge",
    unit=Unit.FLAG,
    help="Whether the gateway serves; 0 while it is about to stop.",
    look_at="nothing: 1 is good",
)
UPTIME: Final = _envoy(
    name="envoy_server_uptime",
    kind="gauge",
    unit=Unit.SECONDS,
    help="Since the gateway was started.",
    look_at="nothing: when it falls, the gateway was started again",
)
MEMORY: Final = _envoy(
    name="envoy_server_memory_allocated",
    kind="gauge",
    unit=Unit.BYTES,
    help="Memory that Envoy has in use.",
    look_at="open connections and requests, each of which has buffers",
)
CERTIFICATE_DAYS: Final = _envoy(
    name="envoy_server_days_until_first_cert_expiring",
    kind="gauge",
    unit=Unit.COUNT,
    help="Days until the first of the gateway's certificates expires; a very large number without TLS.",
    look_at="nothing: when it is low, whoever renews certificates",
)
