"""TLS with clients and with the mesh: files checked before Envoy starts, and taken anew when they are replaced.

Envoy watches files of certificates only when a file of its own, an SDS resource, names them. These
name paths alone and no secrets, and lie in a folder of this user under a name made from what they say:
a gateway with the same settings finds them again, and none piles up.
"""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import stat
import tempfile
from pathlib import Path
from typing import Any

from pagemesh.config import TlsConfig
from pagemesh.config.connections import MeshTlsConfig
from pagemesh.errors import ConfigError
from pagemesh.gateway.names import TYPE
from pagemesh.identity.roles import MeshRole


def file_source(path: str) -> dict[str, str]:
    """Envoy's `DataSource` for a file."""
    return {"filename": str(Path(path).absolute())}


def secret_source(name: str, kind: str, secret: dict[str, Any]) -> dict[str, Any]:
    """Envoy's `SdsSecretConfig` for a secret of this kind; writes the file that it refers to. ConfigError if it cannot."""
    resource = {"@type": TYPE + "transport_sockets.tls.v3.Secret", "name": name, kind: secret}
    path = _write(name, json.dumps({"resources": [resource]}))
    source = {"resource_api_version": "V3", "path_config_source": {"path": str(path)}}
    return {"name": name, "sds_config": source}


def _write(name: str, text: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"pagemesh-gateway-{os.getuid()}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    path = folder / f"{name}-{digest}.json"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise ConfigError(f"{folder} must be a folder that this user alone can write")
        if not path.exists() or path.read_text() != text:
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(text)
            partial.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    return path


_TLS = TYPE + "transport_sockets.tls.v3."


def check_tls(tls: TlsConfig) -> None:
    """Raise ConfigError, naming the flag, for files that are missing, no PEM, or do not fit together."""
    if tls.ssl_certfile is None:
        return
    key_flag = "--ssl-certfile" if tls.ssl_keyfile is None else "--ssl-keyfile"
    key_path = tls.ssl_keyfile or tls.ssl_certfile
    certificate = _read(tls.ssl_certfile, "--ssl-certfile")
    key = _read(key_path, key_flag)
    _require_pem("--ssl-certfile", tls.ssl_certfile, certificate, "CERTIFICATE")
    _require_pem(key_flag, key_path, key, "PRIVATE KEY")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.ssl_certfile, key_path, password=_no_password)
    except _EncryptedKeyError:
        raise ConfigError(f"{key_flag} is {key_path!r}, whose key is encrypted") from None
    except ssl.SSLError as error:
        raise ConfigError(
            f"--ssl-certfile is {tls.ssl_certfile!r} and {key_flag} is {key_path!r}, which cannot be used "
            f"together: {error.reason or error}"
        ) from error
    if tls.ssl_ca_certs is not None:
        authorities = _read(tls.ssl_ca_certs, "--ssl-ca-certs")
        _require_pem("--ssl-ca-certs", tls.ssl_ca_certs, authorities, "CERTIFICATE")
        try:
            context.load_verify_locations(cadata=authorities)
        except ssl.SSLError as error:
            raise ConfigError(
                f"--ssl-ca-certs is {tls.ssl_ca_certs!r}, which cannot be used: {error.reason or error}"
            ) from error


class _EncryptedKeyError(Exception):
    """The key asks for a password."""


def _no_password() -> str:
    raise _EncryptedKeyError


def _read(path: str, flag: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise ConfigError(f"{flag} is {path!r}, which cannot be read: {error.strerror}") from error


def _require_pem(flag: str, path: str, text: str, kind: str) -> None:
    if f"{kind}-----" not in text:
        raise ConfigError(f"{flag} is {path!r}, which has no {kind} in PEM format")


def transport_socket(tls: TlsConfig, *, watched: bool) -> dict[str, Any] | None:
    """Envoy's `TransportSocket` for a listener, None without TLS; writes SDS files when `watched`."""
    if tls.ssl_certfile is None:
        return None
    common: dict[str, Any] = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "alpn_protocols": ["h2", "http/1.1"],
    }
    certificate = {
        "certificate_chain": file_source(tls.ssl_certfile),
        "private_key": file_source(tls.ssl_keyfile or tls.ssl_certfile),
    }
    if watched:
        secret = secret_source("certificate", "tls_certificate", certificate)
        common["tls_certificate_sds_secret_configs"] = [secret]
    else:
        common["tls_certificates"] = [certificate]
    if tls.ssl_ca_certs is not None and tls.client_certificates != "ignored":
        authorities = {"trusted_ca": file_source(tls.ssl_ca_certs)}
        if watched:
            secret = secret_source("authorities", "validation_context", authorities)
            common["validation_context_sds_secret_config"] = secret
        else:
            common["validation_context"] = authorities
    return {
        "name": "tls",
        "typed_config": {
            "@type": _TLS + "DownstreamTlsContext",
            "common_tls_context": common,
            "require_client_certificate": tls.client_certificates == "required",
        },
    }


_UPSTREAM_TLS = TYPE + "transport_sockets.tls.v3."


def router_transport_socket(mesh: MeshTlsConfig, *, watched: bool) -> dict[str, Any] | None:
    """Envoy's `TransportSocket` for the routers' cluster, None without TLS; writes SDS files when `watched`."""
    common = mesh_certificates(mesh, MeshRole.ROUTER, watched=watched)
    if common is None:
        return None
    return {
        "name": "tls",
        "typed_config": {
            "@type": _UPSTREAM_TLS + "UpstreamTlsContext",
            "common_tls_context": {**common, "alpn_protocols": ["h2"]},
            "sni": MeshRole.ROUTER.dns_name,
        },
    }


def mesh_certificates(
    mesh: MeshTlsConfig, peer: MeshRole | None, *, watched: bool
) -> dict[str, Any] | None:
    """Envoy's `CommonTlsContext` for a peer of this role, or any of the mesh; None without TLS."""
    if not (mesh.mesh_cert and mesh.mesh_key and mesh.mesh_ca):
        return None
    certificate: dict[str, Any] = {
        "certificate_chain": file_source(mesh.mesh_cert),
        "private_key": file_source(mesh.mesh_key),
    }
    authorities: dict[str, Any] = {"trusted_ca": file_source(mesh.mesh_ca)}
    if peer is not None:
        role = {"san_type": "DNS", "matcher": {"exact": peer.dns_name}}
        authorities["match_typed_subject_alt_names"] = [role]
    common: dict[str, Any] = {
        "tls_params": {
            "tls_minimum_protocol_version": "TLSv1_2",
            "tls_maximum_protocol_version": "TLSv1_3",
        },
    }
    if watched:
        # Whole folders: Kubernetes replaces a link beside the files, and none of them.
        certificate["watched_directory"] = _folder(mesh.mesh_cert)
        authorities["watched_directory"] = _folder(mesh.mesh_ca)
        common["tls_certificate_sds_secret_configs"] = [
            secret_source("mesh-certificate", "tls_certificate", certificate)
        ]
        name = "mesh-authorities" if peer is None else f"mesh-authorities-{peer.value}"
        common["validation_context_sds_secret_config"] = secret_source(
            name, "validation_context", authorities
        )
    else:
        common["tls_certificates"] = [certificate]
        common["validation_context"] = authorities
    return common


def _folder(path: str) -> dict[str, str]:
    return {"path": str(Path(path).absolute().parent)}
