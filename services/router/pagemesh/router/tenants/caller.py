"""On whose behalf a task works."""

from __future__ import annotations

import contextvars
import time
from dataclasses import dataclass
from typing import Final

from pagemesh.router.tenants.allowance import Allowance
from pagemesh.router.tenants.tenant import Tenant

TENANT_KEY: Final = "x-pagemesh-tenant"
"""Metadata of answers with the tenant's name, for the gateway's access log."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent the present call."""

    tenant: Tenant
    allowance: Allowance

    def headers(self) -> tuple[tuple[str, str], ...]:
        """What the answer says of it."""
        name = self.tenant.name
        return (*(((TENANT_KEY, name),) if name else ()), *self.allowance.headers())


_NOBODY: Final = Caller(Tenant(""), Allowance(Tenant(""), 1, time.monotonic))
_current: contextvars.ContextVar[Caller | None] = contextvars.ContextVar("caller", default=None)


def current_caller() -> Caller:
    """Whom this task works for; somebody without a name and limits outside of calls."""
    return _current.get() or _NOBODY


def bind_caller(caller: Caller) -> None:
    """Have this task, and tasks that it starts from now on, work for `caller`."""
    _current.set(caller)
