"""What the environment says instead of the command line: what other users of the machine would see there, and what
is the same for all that runs in a container."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from pagemesh.errors import ConfigError

API_KEY_VARIABLE: Final = "PAGEMESH_API_KEY"
"""One key, or several with commas in between."""

HOST_VARIABLE: Final = "PAGEMESH_HOST"
"""Where `pagemesh serve` listens when no flag says it: in a container, on all addresses."""

CORES_VARIABLE: Final = "PAGEMESH_SHARED_CORES"
"""For a worker that shares cores with others: an open descriptor, and its place in the table there."""

OPENAI_KEY_VARIABLE: Final = "OPENAI_API_KEY"


def api_keys_of_environment(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The keys that routers ask for and clients send, where nothing else says which."""
    keys = (key.strip() for key in environment.get(API_KEY_VARIABLE, "").split(","))
    return tuple(key for key in keys if key)


def endpoint_key_of_environment(environment: Mapping[str, str] = os.environ) -> str | None:
    """The key for an endpoint that need not be a mesh: OpenAI's variable goes first, as for OpenAI's own client."""
    keys = (environment.get(OPENAI_KEY_VARIABLE, "").strip(), *api_keys_of_environment(environment))
    return next((key for key in keys if key), None)


def core_place_of_environment(
    environment: Mapping[str, str] = os.environ,
) -> tuple[int, int] | None:
    """The descriptor and the place; None where no cores are shared, ConfigError for what no supervisor says."""
    text = environment.get(CORES_VARIABLE)
    if text is None:
        return None
    try:
        descriptor, place = map(int, text.split(":"))
        os.fstat(descriptor)
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"{CORES_VARIABLE} is {text!r}, which is for `pagemesh up` to set: {error}"
        ) from error
    return descriptor, place


MESH_VARIABLES: Final = {
    "mesh_cert": "PAGEMESH_MESH_CERT",
    "mesh_key": "PAGEMESH_MESH_KEY",
    "mesh_ca": "PAGEMESH_MESH_CA",
}
"""Paths of the files of `MeshTlsConfig`, by its fields."""


def mesh_file_of_environment(field: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The path of one of the mesh's certificates that no setting names; None for none."""
    return environment.get(MESH_VARIABLES[field]) or None


ENDPOINT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""OpenTelemetry's, the more special one first."""

SAMPLER_VARIABLE: Final = "OTEL_TRACES_SAMPLER"
SHARE_VARIABLE: Final = "OTEL_TRACES_SAMPLER_ARG"

_SHARES: Final = {"always_on": 1.0, "always_off": 0.0, "traceidratio": None}
"""Of OpenTelemetry's samplers; None where the other variable says it."""


def traces_endpoint_of_environment(environment: Mapping[str, str] = os.environ) -> str | None:
    """Where spans go when no setting says it; None for nowhere."""
    given = (environment.get(name) for name in ENDPOINT_VARIABLES)
    return next((endpoint for endpoint in given if endpoint), None)


def traces_share_of_environment(environment: Mapping[str, str] = os.environ) -> float:
    """Of the traces that begin here, the share that is recorded when no setting says it; ConfigError for none.

    Whether a sampler asks the parent makes no difference: whoever has begun a trace decides.
    """
    sampler = environment.get(SAMPLER_VARIABLE) or "always_on"
    kind = sampler.removeprefix("parentbased_")
    if kind not in _SHARES:
        known = ", ".join(f"{prefix}{name}" for prefix in ("", "parentbased_") for name in _SHARES)
        raise ConfigError(f"{SAMPLER_VARIABLE} is {sampler!r}, but must be one of {known}")
    share = _SHARES[kind]
    if share is not None:
        return share
    text = environment.get(SHARE_VARIABLE) or "1"
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(f"{SHARE_VARIABLE} is {text!r}, but must be between 0 and 1")
    return share
