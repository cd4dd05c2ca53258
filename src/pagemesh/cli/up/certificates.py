"""Certificates for the parts of one mesh, and for whoever starts it, out of one authority that then is gone."""

from __future__ import annotations

from pathlib import Path

import grpc

from pagemesh.cli.up.plan import MeshPlan
from pagemesh.identity.certificates import ThrowAwayAuthority
from pagemesh.identity.roles import REQUIRED, MeshRole


def issue_certificates(plan: MeshPlan) -> grpc.ChannelCredentials:
    """Write those of all parts; gives the credentials with which they are asked how they are."""
    own = plan.supervisor_tls
    assert own.mesh_cert and own.mesh_key, "planned with TLS"
    Path(own.mesh_cert).parent.mkdir(mode=0o700)
    authority = ThrowAwayAuthority()
    for part in plan.parts:
        authority.issue(part.tls, REQUIRED[part.role])
    authority.issue(own, REQUIRED[MeshRole.HEALTH])
    return grpc.ssl_channel_credentials(
        authority.pem, Path(own.mesh_key).read_bytes(), Path(own.mesh_cert).read_bytes()
    )
