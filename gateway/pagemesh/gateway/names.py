"""Names and units that several parts of the configuration share."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics import envoy

TYPE: Final = "type.googleapis.com/envoy.extensions."
"""Beginning of the type of every extension."""

MANAGER: Final = envoy.MANAGER
"""Under which Envoy counts the requests of clients."""

CLUSTER: Final = envoy.CLUSTER
"""Of the routers."""

MIB: Final = 1024 * 1024

PRIVATE_HEADERS: Final = ("x-http-status", "x-client-id", "x-pagemesh-tenant")
"""Set by the gateway or the router alone; a client must not forge them."""

TENANT_HEADER: Final = "x-pagemesh-tenant"
"""In which a router names the tenant of a request, for the access log alone."""

TENANT_METADATA: Final = ("pagemesh", "tenant")
"""Namespace and key under which Envoy keeps it."""

CREDENTIALS: Final = ("authorization", "x-api-key")
"""Headers in which a client sends its key: OpenAI's and Anthropic's."""

ANTHROPIC_PREFIX: Final = "/v1/messages"
"""Beginning of the paths whose clients expect Anthropic's error object."""
