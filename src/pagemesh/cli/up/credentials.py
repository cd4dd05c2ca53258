"""What `pagemesh up` itself and its parts show: the key that it sends, and certificates out of one authority.

The authority is gone when they are made. People are shown how to send keys of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import grpc

from pagemesh.cli.up.plan import MeshPlan
from pagemesh.config import TenantsConfig
from pagemesh.config.environment import API_KEY_VARIABLE, api_keys_of_environment
from pagemesh.identity.roles import REQUIRED, MeshRole
from pagemesh.identity.throw_away import ThrowAwayAuthority


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


class Credentials(NamedTuple):
    """How to call the mesh."""

    keys: tuple[str, ...]
    """Those that are known here; a key file has but hashes."""

    is_secret: bool
    """Whether they must not be shown: they were not given for all to see."""

    is_required: bool

    @classmethod
    def of(cls, config: TenantsConfig) -> Credentials:
        """From the settings, and the environment where those name no key."""
        keys = config.api_key or api_keys_of_environment()
        is_required = bool(keys) or config.asks_for_keys
        return cls(keys, is_secret=not config.api_key, is_required=is_required)

    @property
    def curl_header(self) -> str:
        """What follows an URL on curl's command line."""
        if not self.is_required:
            return ""
        key = f"${API_KEY_VARIABLE}" if self.is_secret else self.keys[0]
        return f' -H "authorization: Bearer {key}"'

    @property
    def python_value(self) -> str:
        """An expression for the client's `api_key`."""
        if not self.is_required:
            return '"none"'
        if self.is_secret:
            return f'os.environ["{API_KEY_VARIABLE}"]'
        return f'"{self.keys[0]}"'
