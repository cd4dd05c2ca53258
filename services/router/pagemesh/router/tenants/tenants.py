"""Everything that a router knows of its tenants."""

from __future__ import annotations

import time

from pagemesh.config.router import TenantsConfig
from pagemesh.router.tenants.allowance import Allowances
from pagemesh.router.tenants.caller import Caller
from pagemesh.router.tenants.key_watch import KeyWatch
from pagemesh.router.tenants.registry import Registry
from pagemesh.telemetry.metrics import Metrics


class Tenants:
    """start → close; finds callers before, too."""

    def __init__(self, config: TenantsConfig, metrics: Metrics) -> None:
        """Read the key file; ConfigError naming what is wrong with it."""
        self.metrics_are_open = config.open_metrics
        """Whether metrics are shown to calls without a key."""
        self._registry = Registry(config)
        self._allowances = Allowances(config.limits_shared_by, time.monotonic)
        self._watch = KeyWatch(self._registry, metrics)

    def start(self) -> None:
        """Begin to heed changes of the key file."""
        self._watch.start()

    async def close(self) -> None:
        """Stop that. Idempotent."""
        await self._watch.close()

    def caller(self, key: str | None) -> Caller:
        """Who calls with this key, or without one; UnauthenticatedError when nobody may."""
        tenant = self._registry.tenant_of(key)
        return Caller(tenant, self._allowances.of(tenant))
