"""The dashboards, one module each."""

from typing import Final

from tools.monitoring.dashboards import engines, gateway, kv, latency, overview

DASHBOARDS: Final = [overview.BOARD, latency.BOARD, kv.BOARD, engines.BOARD, gateway.BOARD]
