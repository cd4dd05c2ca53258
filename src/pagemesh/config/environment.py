"""What the environment says instead of the command line: what other users of the machine would see there, and what
is the same for all that runs in a container.

`require` refuses a wrong setting, wherever it was said.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import unquote

from pagemesh.errors import ConfigError


def require(condition: bool, flag: str, value: object, expected: str) -> None:
    """Raise ConfigError naming a flag and its value unless the condition holds."""
    if not condition:
        raise ConfigError(f"{flag} is {value!r}, but must be {expected}")


def read_object(flag: str, text: str) -> dict[str, Any]:
    """A JSON object that a setting is; ConfigError naming flag and value for anything else."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{flag} is {text!r}, which is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{flag} is {text!r}, but must be a JSON object")
    return value


def require_share(utilization: float) -> None:
    """Raise ConfigError unless --gpu-memory-utilization is a share."""
    require(0 < utilization <= 1, "--gpu-memory-utilization", utilization, "in (0, 1]")


def require_seconds(flag: str, seconds: float, most: float) -> None:
    """Raise ConfigError unless a time is more than 0 and at most `most` seconds."""
    require(0 < seconds <= most, flag, seconds, f"more than 0 and at most {most:g} seconds")


API_KEY_VARIABLE: Final = "PAGEMESH_API_KEY"
"""One key, or several with commas in between."""

HOST_VARIABLE: Final = "PAGEMESH_HOST"
"""Where `pagemesh serve` listens when no flag says it: in a container, on all addresses."""

CORES_VARIABLE: Final = "PAGEMESH_SHARED_CORES"
"""For a worker that shares cores with others: an open descriptor, and its place in the table there."""

WEIGHTS_VARIABLE: Final = "PAGEMESH_SHARED_WEIGHTS"
"""For a worker that holds its weights in memory that others have as well: an open descriptor of it."""

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
    numbers = _inherited(CORES_VARIABLE, 2, environment)
    return None if numbers is None else (numbers[0], numbers[1])


def shared_weights_of_environment(environment: Mapping[str, str] = os.environ) -> int | None:
    """The descriptor; None where no weights are shared, ConfigError for what no supervisor says."""
    numbers = _inherited(WEIGHTS_VARIABLE, 1, environment)
    return None if numbers is None else numbers[0]


def _inherited(
    variable: str, num_numbers: int, environment: Mapping[str, str]
) -> tuple[int, ...] | None:
    """The numbers in a variable, of which the first is a descriptor that is open here."""
    text = environment.get(variable)
    if text is None:
        return None
    try:
        numbers = tuple(map(int, text.split(":")))
        if len(numbers) != num_numbers:
            raise ValueError(f"it has {len(numbers)} numbers instead of {num_numbers}")
        os.fstat(numbers[0])
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"{variable} is {text!r}, which is for `pagemesh up` to set: {error}"
        ) from error
    return numbers


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

PROTOCOL_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HEADERS_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")

TracesProtocol = Literal["grpc", "http/protobuf"]
TRACES_PROTOCOLS: Final[tuple[TracesProtocol, ...]] = ("grpc", "http/protobuf")

SAMPLER_VARIABLE: Final = "OTEL_TRACES_SAMPLER"
SHARE_VARIABLE: Final = "OTEL_TRACES_SAMPLER_ARG"

_SHARES: Final = {"always_on": 1.0, "always_off": 0.0, "traceidratio": None}
"""Of OpenTelemetry's samplers; None where the other variable says it."""


def traces_endpoint_of_environment(
    environment: Mapping[str, str] = os.environ,
) -> tuple[str, str] | None:
    """The variable that says where spans go when no setting does, and what it says; None for nowhere."""
    return _first_of(ENDPOINT_VARIABLES, environment)


def traces_protocol_of_environment(
    environment: Mapping[str, str] = os.environ,
) -> TracesProtocol | None:
    """How spans are sent when no setting says it; None where nothing does, ConfigError for no way that there is."""
    found = _first_of(PROTOCOL_VARIABLES, environment)
    if found is None:
        return None
    name, protocol = found
    if protocol not in TRACES_PROTOCOLS:
        raise ConfigError(
            f"{name} is {protocol!r}, but must be one of {', '.join(TRACES_PROTOCOLS)}"
        )
    return protocol


def traces_headers_of_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What goes with each batch of spans, by lower-case names: keys mostly, so no error says a value.

    Values may be percent-encoded. ConfigError for what is no header.
    """
    name, text = _first_of(HEADERS_VARIABLES, environment) or ("", "")
    headers: dict[str, str] = {}
    for number, pair in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        key, _, value = (part.strip() for part in pair.partition("="))
        value = unquote(value)
        if not (_HEADER_NAME.fullmatch(key) and _HEADER_VALUE.fullmatch(value)):
            raise ConfigError(
                f"{name} has no header in place {number}: it must be name=value, several with commas in between,"
                " and what is no printable ASCII, or a comma, percent-encoded"
            )
        if key.lower() in _OWN_HEADERS:
            raise ConfigError(f"{name} sets {key!r}, which every message has already")
        headers[key.lower()] = value
    return headers


_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_OWN_HEADERS: Final = frozenset(
    {"host", "content-type", "content-length", "transfer-encoding", "te"}
)


def _first_of(names: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The first variable that is set to something, and to what."""
    given = ((name, environment.get(name, "").strip()) for name in names)
    return next(((name, text) for name, text in given if text), None)


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
