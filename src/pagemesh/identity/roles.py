"""What a process may be, and the one table of who may call what.

A certificate says what its owner is by DNS names such as router.pagemesh, which every authority can issue.
They are names of roles and no hosts: where a process runs, and how many there are of a kind, is in no certificate.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

_DOMAIN: Final = ".pagemesh"


class MeshRole(StrEnum):
    """What the owner of a certificate is; one may be several."""

    GATEWAY = "gateway"
    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"
    WORKER = "worker"
    """Of both kinds; a worker's certificate has this name beside that of its kind."""
    KVSTORE = "kvstore"
    CLIENT = "client"
    """Outside of the mesh, and allowed to call routers without a gateway; needs an API key like all others."""
    HEALTH = "health"
    """Asks how a process is, or for its metrics, and nothing else: a probe, Prometheus, or `pagemesh doctor`."""

    @property
    def dns_name(self) -> str:
        """The name in certificates."""
        return f"{self.value}{_DOMAIN}"


_PUBLIC: Final = frozenset({MeshRole.GATEWAY, MeshRole.CLIENT})
_WORKERS: Final = frozenset({MeshRole.WORKER})
_ROUTERS: Final = frozenset({MeshRole.ROUTER})

CALLERS: Final[dict[str, frozenset[MeshRole]]] = {
    "pagemesh.v1.KvStore/Register": _WORKERS,
    "pagemesh.v1.KvStore/Publish": _WORKERS,
    "pagemesh.v1.KvStore/Lookup": _ROUTERS,
    "pagemesh.v1.KvStore/Watch": _ROUTERS,
    "pagemesh.v1.KvStore/ListWatchers": _ROUTERS,
    "pagemesh.v1.KvStore/Snapshot": _ROUTERS,
    "pagemesh.v1.Decode/Session": _ROUTERS,
    "pagemesh.v1.Prefill/Prefill": frozenset({MeshRole.DECODE}),
    "pagemesh.v1.KvTransfer/Fetch": _WORKERS,
    "pagemesh.v1.Anthropic": _PUBLIC,
    "pagemesh.v1.Console": _PUBLIC,
    "pagemesh.v1.Inference": _PUBLIC,
    "pagemesh.v1.OpenAI": _PUBLIC,
    "pagemesh.v1.Process": frozenset({MeshRole.GATEWAY, MeshRole.HEALTH}),
    "pagemesh.v1.Process/Metrics": frozenset({MeshRole.GATEWAY, MeshRole.HEALTH, MeshRole.ROUTER}),
    "pagemesh.v1.Peers/Reach": frozenset({MeshRole.HEALTH}),
    "pagemesh.v1.Peers/Introduce": _WORKERS,
}
"""Who may call a method, or every method of a service; what stands here not may be called by nobody.

Health checks and reflection are open to whoever has a certificate of the mesh, and are not asked for here."""

REQUIRED: Final[dict[MeshRole, frozenset[MeshRole]]] = {
    role: frozenset({role, MeshRole.WORKER})
    if role in (MeshRole.PREFILL, MeshRole.DECODE)
    else frozenset({role})
    for role in MeshRole
}
"""Roles that the certificate of a process must name, by what the process is."""


def roles_of(dns_names: Iterable[str]) -> frozenset[MeshRole]:
    """The roles among a certificate's names; other names, of hosts for example, mean nothing here."""
    known = {role.dns_name: role for role in MeshRole}
    return frozenset(known[name] for name in dns_names if name in known)


def may_call(method: str, roles: Iterable[MeshRole]) -> bool:
    """Whether somebody who is all of `roles` may call "/package.Service/Method"."""
    path = method.removeprefix("/")
    allowed = CALLERS.get(path) or CALLERS.get(path.partition("/")[0], frozenset())
    return not allowed.isdisjoint(roles)
