"""Settings of connections: TLS between the processes of a mesh, where spans go and which, and where a Redis is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from pagemesh.config.environment import (
    ENDPOINT_VARIABLES,
    HEADERS_VARIABLES,
    TracesProtocol,
    mesh_file_of_environment,
    require,
    traces_endpoint_of_environment,
    traces_protocol_of_environment,
    traces_share_of_environment,
)
from pagemesh.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MeshTlsConfig:
    """Certificates that processes of a mesh show each other; all three files or none.

    Files that are replaced (by a rename, as `mv`, cert-manager and Kubernetes do) are used for new connections
    without a restart. PAGEMESH_MESH_CERT, PAGEMESH_MESH_KEY and PAGEMESH_MESH_CA name them where no flag does.
    """

    mesh_cert: str | None = field(default_factory=partial(mesh_file_of_environment, "mesh_cert"))
    """PEM file with this process's certificate, and those between it and an authority; with it, other processes of
    the mesh are called and served by TLS alone, and must show a certificate too. Its DNS names say what the process
    is, such as router.pagemesh."""

    mesh_key: str | None = field(default_factory=partial(mesh_file_of_environment, "mesh_key"))
    """PEM file with that certificate's private key, which must not be encrypted."""

    mesh_ca: str | None = field(default_factory=partial(mesh_file_of_environment, "mesh_ca"))
    """PEM file with the authorities whose certificates are accepted."""

    @classmethod
    def in_folder(cls, folder: Path, name: str) -> Self:
        """Files that are called after their owner."""
        return cls(*(str(folder / f"{name}.{kind}") for kind in ("crt", "key", "ca")))

    def __post_init__(self) -> None:
        paths = {
            "--mesh-cert": self.mesh_cert,
            "--mesh-key": self.mesh_key,
            "--mesh-ca": self.mesh_ca,
        }
        missing = [flag for flag, path in paths.items() if path is None]
        if missing and len(missing) < len(paths):
            raise ConfigError(
                f"{' and '.join(missing)} must be given too: --mesh-cert, --mesh-key and --mesh-ca belong together"
            )

    @property
    def is_on(self) -> bool:
        """Whether the processes of the mesh speak TLS with each other."""
        return self.mesh_cert is not None


_FORMS = "memory, redis://host:port/db, rediss://host:port/db or unix:///path?db=db"


def check_store_url(flag: str, url: str) -> None:
    """Raise ConfigError unless it names a server and, if at all, a database by its number.

    A client that took no notice of a database that is no number would use database 0, maybe another mesh's.
    """
    shown = without_password(url)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        require(False, flag, shown, f"{_FORMS}: {error}")
        return
    require(parts.scheme in ("redis", "rediss", "unix"), flag, shown, _FORMS)
    if parts.scheme == "unix":
        require(not parts.netloc.rpartition("@")[2] and len(parts.path) > 1, flag, shown, _FORMS)
    else:
        is_number = re.fullmatch(r"/?|/\d{1,9}", parts.path) is not None
        require(is_number, flag, shown, f"{_FORMS}, where db is a number")


def without_password(url: str) -> str:
    """The URL to be shown: a name and a password in it are left out."""
    return re.sub(r"(?<=//).*@", "", url, count=1)


_FLAG: Final = "--otlp-traces-endpoint"
_HOST: Final = r"(\[[0-9A-Fa-f:.]+\]|[^/\s:\[\]]+)"
_ADDRESS: Final = re.compile(rf"{_HOST}:\d{{1,5}}/?")
_URL_OF_ADDRESS: Final = re.compile(rf"https?://{_HOST}:\d{{1,5}}/?")
_URL: Final = re.compile(rf"https?://{_HOST}(:\d{{1,5}})?(/\S*)?")

_PATH: Final = "/v1/traces"
"""Of a receiver's spans, below a URL that is for all that it receives."""


@dataclass(frozen=True, slots=True)
class TracesConfig:
    """Whether requests are traced."""

    otlp_traces_endpoint: str | None = None
    """host:port or URL of a collector that takes OpenTelemetry's spans; with https:// it is called by TLS. A URL for
    http/protobuf is used as it is, host:port has /v1/traces behind it. Unset, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or
    OTEL_EXPORTER_OTLP_ENDPOINT of the environment says where; without them, nothing is traced, and what callers say
    of their traces is passed on unchanged."""

    traces_sample_ratio: float | None = None
    """Share of the traces that begin here which is recorded, from 0 to 1; unset, OTEL_TRACES_SAMPLER and
    OTEL_TRACES_SAMPLER_ARG of the environment say it, and without them it is all. A request that comes with a
    trace is recorded if its caller records it, and everywhere or nowhere."""

    otlp_traces_protocol: TracesProtocol | None = None
    """How spans are sent; unset, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL or OTEL_EXPORTER_OTLP_PROTOCOL of the environment
    says it, and without them it is grpc. Keys that a receiver asks for are OTEL_EXPORTER_OTLP_HEADERS of the
    environment, for either protocol."""

    def __post_init__(self) -> None:
        if self.otlp_traces_endpoint is not None:
            _require_endpoint(_FLAG, self.otlp_traces_endpoint, self.protocol)
        ratio = self.traces_sample_ratio
        is_share = ratio is None or 0 <= ratio <= 1
        require(is_share, "--traces-sample-ratio", ratio, "between 0 and 1")

    @property
    def protocol(self) -> TracesProtocol:
        """How spans are sent. ConfigError for an environment that says no way that there is."""
        return self.otlp_traces_protocol or traces_protocol_of_environment() or "grpc"

    @property
    def endpoint(self) -> str | None:
        """Where spans go, as a URL; None for nowhere. ConfigError for an environment that says no place."""
        name, given = _FLAG, self.otlp_traces_endpoint
        if given is None:
            name, given = traces_endpoint_of_environment() or ("", None)
        if given is None:
            return None
        _require_endpoint(name, given, self.protocol)
        is_address = "://" not in given
        url = f"http://{given}" if is_address else given
        if self.protocol == "http/protobuf" and (is_address or name == ENDPOINT_VARIABLES[-1]):
            return url.removesuffix("/") + _PATH
        return url

    @property
    def share(self) -> float:
        """Of the traces that begin here, those that are recorded. ConfigError for an environment that says no share."""
        if self.traces_sample_ratio is not None:
            return self.traces_sample_ratio
        return traces_share_of_environment()


def _require_endpoint(name: str, given: str, protocol: TracesProtocol) -> None:
    """Raise ConfigError unless spans can be sent there."""
    if re.search("[@?#]", given):
        raise ConfigError(
            f"{name} has a user or a query in it, but must be an address or URL without keys, as logs show it:"
            f" they are for {HEADERS_VARIABLES[-1]} of the environment"
        )
    if protocol == "grpc" and name == _FLAG:
        known, expected = _URL_OF_ADDRESS, "host:port, or that behind http(s)://, for gRPC"
    else:
        known, expected = _URL, "host:port or a URL with http(s)://"
    is_place = _ADDRESS.fullmatch(given) or known.fullmatch(given)
    require(is_place is not None, name, given, expected)
