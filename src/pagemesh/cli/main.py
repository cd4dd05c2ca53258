"""Entry point of the `pagemesh` command: `pagemesh up | gateway | router | prefill | …`.

A start that fails ends in one sentence on stderr: exit code 2 when the flags are wrong, else 1.
Modules of a part are imported only when that part is started, so that help is quick and no process
loads what it does not use.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from pagemesh import config
from pagemesh.bench.settings import BenchLatencyConfig, BenchServeConfig, BenchThroughputConfig
from pagemesh.cli.arguments import UsageError, parse
from pagemesh.cli.doctor.settings import DoctorConfig
from pagemesh.cli.settings import (
    CertificatesConfig,
    HealthConfig,
    KeysConfig,
    PlanConfig,
    UpConfig,
)
from pagemesh.errors import PagemeshError
from pagemesh.sim.settings import SimConfig

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand."""

    summary: str
    """One line for the list of commands."""

    settings: type[Any]
    """Dataclass that its flags are made from."""

    module: str
    """Module whose `run(settings)` does the work and returns when it is done, with an exit code if not 0."""

    positional: str | None = None
    """Flag that the first argument is the value of when it is no flag itself."""


@dataclass(frozen=True, slots=True)
class Group:
    """A subcommand with commands of its own."""

    summary: str
    """One line for the list of commands."""

    commands: dict[str, Command]
    """By name."""


BENCH = Group(
    "measures an endpoint, or a model in this process: pagemesh bench serve",
    {
        "serve": Command(
            "an OpenAI endpoint under load, at one or several rates of requests",
            BenchServeConfig,
            "pagemesh.bench.serve",
        ),
        "throughput": Command(
            "how much a model in this process answers when it is asked all at once",
            BenchThroughputConfig,
            "pagemesh.bench.throughput",
        ),
        "latency": Command(
            "how long a model in this process takes for one batch",
            BenchLatencyConfig,
            "pagemesh.bench.latency",
        ),
    },
)

COMMANDS: dict[str, Command | Group] = {
    "up": Command("a whole mesh on this machine", UpConfig, "pagemesh.cli.up.run"),
    "gateway": Command("Envoy: HTTP for clients", config.GatewayConfig, "pagemesh.gateway.process"),
    "router": Command(
        "OpenAI semantics, tokens, routing", config.RouterConfig, "pagemesh.router.service"
    ),
    "prefill": Command(
        "computes the KV of prompts and ships it", config.WorkerConfig, "pagemesh.prefill.service"
    ),
    "decode": Command(
        "generates tokens in a continuous batch", config.WorkerConfig, "pagemesh.decode.service"
    ),
    "kvstore": Command(
        "knows who holds which KV block", config.KvStoreConfig, "pagemesh.kvstore.service"
    ),
    "keys": Command(
        "makes API keys: pagemesh keys new --tenant NAME",
        KeysConfig,
        "pagemesh.cli.keys",
        positional="--action",
    ),
    "certificates": Command(
        "makes certificates for TLS between the parts: pagemesh certificates FOLDER",
        CertificatesConfig,
        "pagemesh.cli.certificates",
        positional="--folder",
    ),
    "health": Command(
        "whether one process serves, for probes: pagemesh health HOST:PORT",
        HealthConfig,
        "pagemesh.cli.health",
        positional="--address",
    ),
    "plan": Command(
        "how much memory a model needs: pagemesh plan MODEL",
        PlanConfig,
        "pagemesh.cli.plan",
        positional="--model",
    ),
    "doctor": Command(
        "looks at a running mesh, and says what is wrong and what to do",
        DoctorConfig,
        "pagemesh.cli.doctor.run",
        positional="--url",
    ),
    "sim": Command(
        "how a mesh of any size would do under each routing policy", SimConfig, "pagemesh.sim.run"
    ),
    "bench": BENCH,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (the process's own when None); the exit code."""
    # gRPC's core prints errors of its own beside the exceptions that say the same.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        return _dispatch(list(sys.argv[1:] if argv is None else argv))
    except BrokenPipeError:
        # Whoever read the output has gone, as in `pagemesh --help | head -1`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def usage() -> str:
    """Help of the command itself."""
    return "\n".join(
        [
            "usage: pagemesh [--version] [--help] COMMAND [OPTIONS]",
            "",
            "An LLM serving mesh. COMMAND starts one part of it, all of them, or looks ahead:",
            *_lines(COMMANDS),
            "",
            "`pagemesh COMMAND --help` lists the options of each.",
        ]
    )


def group_usage(name: str, group: Group) -> str:
    """Help of a command that has commands of its own."""
    return "\n".join(
        [
            f"usage: pagemesh {name} [--help] COMMAND [OPTIONS]",
            "",
            *_lines(group.commands),
            "",
            f"`pagemesh {name} COMMAND --help` lists the options of each.",
        ]
    )


def _lines(commands: Mapping[str, Command | Group]) -> list[str]:
    width = max(map(len, commands))
    return [f"  {name:<{width}}  {command.summary}" for name, command in commands.items()]


def _dispatch(arguments: Sequence[str]) -> int:
    if not arguments:
        print(usage(), file=sys.stderr)
        return EXIT_USAGE
    name = arguments[0]
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"pagemesh {metadata.version('pagemesh')}")
        return 0
    if name not in COMMANDS:
        return _fail("pagemesh", f"there is no command {name!r}; see pagemesh --help", EXIT_USAGE)
    command = COMMANDS[name]
    if isinstance(command, Group):
        return _dispatch_in(name, command, arguments[1:])
    return _run(f"pagemesh {name}", command, arguments[1:])


def _dispatch_in(group_name: str, group: Group, arguments: Sequence[str]) -> int:
    if not arguments:
        print(group_usage(group_name, group), file=sys.stderr)
        return EXIT_USAGE
    name, prog = arguments[0], f"pagemesh {group_name}"
    if name in ("-h", "--help"):
        print(group_usage(group_name, group))
        return 0
    if name not in group.commands:
        return _fail(prog, f"there is no command {name!r}; see {prog} --help", EXIT_USAGE)
    return _run(f"{prog} {name}", group.commands[name], arguments[1:])


def _run(prog: str, command: Command, arguments: Sequence[str]) -> int:
    if command.positional and arguments and not arguments[0].startswith("-"):
        arguments = [command.positional, *arguments]
    try:
        settings = parse(command.settings, prog, command.summary, arguments)
    except (UsageError, PagemeshError) as error:
        return _fail(prog, str(error), EXIT_USAGE)
    try:
        return importlib.import_module(command.module).run(settings) or 0
    except PagemeshError as error:
        return _fail(prog, error.message, EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _fail(prog: str, sentence: str, code: int) -> int:
    print(f"{prog}: {sentence}", file=sys.stderr)
    return code
