"""TLS from the gateway to the routers: what it shows them, and whom it takes for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pagemesh.config.mesh_tls import MeshTlsConfig
from pagemesh.gateway.names import TYPE
from pagemesh.gateway.sds import file_source, secret_source
from pagemesh.identity.roles import MeshRole

_TLS = TYPE + "transport_sockets.tls.v3."


def router_transport_socket(mesh: MeshTlsConfig, *, watched: bool) -> dict[str, Any] | None:
    """Envoy's `TransportSocket` for the routers' cluster, None without TLS; writes SDS files when `watched`."""
    if not (mesh.mesh_cert and mesh.mesh_key and mesh.mesh_ca):
        return None
    router = {"san_type": "DNS", "matcher": {"exact": MeshRole.ROUTER.dns_name}}
    certificate: dict[str, Any] = {
        "certificate_chain": file_source(mesh.mesh_cert),
        "private_key": file_source(mesh.mesh_key),
    }
    authorities: dict[str, Any] = {
        "trusted_ca": file_source(mesh.mesh_ca),
        "match_typed_subject_alt_names": [router],
    }
    common: dict[str, Any] = {
        "tls_params": {
            "tls_minimum_protocol_version": "TLSv1_2",
            "tls_maximum_protocol_version": "TLSv1_3",
        },
        "alpn_protocols": ["h2"],
    }
    if watched:
        # Whole folders: Kubernetes replaces a link beside the files, and none of them.
        certificate["watched_directory"] = _folder(mesh.mesh_cert)
        authorities["watched_directory"] = _folder(mesh.mesh_ca)
        common["tls_certificate_sds_secret_configs"] = [
            secret_source("mesh-certificate", "tls_certificate", certificate)
        ]
        common["validation_context_sds_secret_config"] = secret_source(
            "mesh-authorities", "validation_context", authorities
        )
    else:
        common["tls_certificates"] = [certificate]
        common["validation_context"] = authorities
    return {
        "name": "tls",
        "typed_config": {
            "@type": _TLS + "UpstreamTlsContext",
            "common_tls_context": common,
            "sni": MeshRole.ROUTER.dns_name,
        },
    }


def _folder(path: str) -> dict[str, str]:
    return {"path": str(Path(path).absolute().parent)}
