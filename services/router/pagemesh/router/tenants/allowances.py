"""What each tenant has left at this router."""

from __future__ import annotations

from collections.abc import Callable

from pagemesh.router.tenants.allowance import Allowance
from pagemesh.router.tenants.tenant import Tenant


class Allowances:
    """One for each tenant that ever called."""

    def __init__(self, num_routers: int, clock: Callable[[], float]) -> None:
        self._num_routers = num_routers
        self._clock = clock
        self._known: dict[str, tuple[Tenant, Allowance]] = {}

    def of(self, tenant: Tenant) -> Allowance:
        """The tenant's, with the limits that it has now."""
        found = self._known.get(tenant.name)
        if found is None:
            allowance = Allowance(tenant, self._num_routers, self._clock)
        elif found[0] is tenant:
            return found[1]
        else:
            allowance = found[1]
            allowance.change(tenant)
        self._known[tenant.name] = tenant, allowance
        return allowance
