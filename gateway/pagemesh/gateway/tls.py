"""TLS for clients: files checked before Envoy starts, and taken anew when they are replaced."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from pagemesh.config import TlsConfig
from pagemesh.errors import ConfigError
from pagemesh.gateway.names import TYPE
from pagemesh.gateway.sds import file_source, secret_source

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
