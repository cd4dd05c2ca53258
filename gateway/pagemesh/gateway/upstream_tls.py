"""TLS with the gateway's certificate of the mesh: what it shows to others, and whom it takes for one of the mesh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pagemesh.config.mesh_tls import MeshTlsConfig
from pagemesh.gateway.names import TYPE
from pagemesh.gateway.sds import file_source, secret_source
from pagemesh.identity.roles import MeshRole

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
