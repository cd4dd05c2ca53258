"""Roles of workers: as they tell them, and as routing sees them."""

from __future__ import annotations

from typing import Final

from pagemesh.router.routing.candidate import Role
from pagemesh.v1 import types_pb2

ROLES: Final = {
    types_pb2.WORKER_ROLE_PREFILL: Role.PREFILL,
    types_pb2.WORKER_ROLE_DECODE: Role.DECODE,
}
"""All roles that a router has a use for."""
