"""Entry point of the `pagemesh` command: `pagemesh serve | up | gateway | router | prefill | …`.

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

from pagemesh.errors import PagemeshError
from pagemesh.local.processes import heed_sigterm, loading

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand."""

    summary: str
    """One line for the list of commands."""

    settings_name: str
    """Module and dataclass, with a colon in between, that its flags are made from."""

    module: str
    """Module whose `run(settings)` does the work and returns when it is done, with an exit code if not 0."""

    positional: str | None = None
    """Flag that the first argument is the value of when it is no flag itself."""

    reads: str | None = None
    """Module and function, with a colon in between, that makes the command's own arguments of those that are given."""

    @property
    def settings(self) -> type[Any]:
        """Dataclass that its flags are made from."""
        found: type[Any] = _load(self.settings_name)
        return found


COMMANDS = {
    "serve": Command(
        "a whole mesh for a model, with vLLM's flags: pagemesh serve MODEL",
        "pagemesh.cli.settings:UpConfig",
        "pagemesh.cli.up.run",
        reads="pagemesh.cli.serve:own_arguments",
    ),
    "up": Command(
        "a whole mesh on this machine",
        "pagemesh.cli.settings:UpConfig",
        "pagemesh.cli.up.run",
        reads="pagemesh.cli.longest_context:mesh_arguments",
    ),
    "gateway": Command(
        "Envoy: HTTP for clients", "pagemesh.config:GatewayConfig", "pagemesh.gateway.process"
    ),
    "router": Command(
        "OpenAI semantics, tokens, routing",
        "pagemesh.config:RouterConfig",
        "pagemesh.router.service",
    ),
    "prefill": Command(
        "computes the KV of prompts and sends it",
        "pagemesh.config:WorkerConfig",
        "pagemesh.prefill.service",
        reads="pagemesh.cli.longest_context:worker_arguments",
    ),
    "decode": Command(
        "generates tokens in a continuous batch",
        "pagemesh.config:WorkerConfig",
        "pagemesh.decode.service",
        reads="pagemesh.cli.longest_context:worker_arguments",
    ),
    "kvstore": Command(
        "knows who holds which KV block",
        "pagemesh.config:KvStoreConfig",
        "pagemesh.kvstore.service",
    ),
    "keys": Command(
        "makes API keys: pagemesh keys new --tenant NAME",
        "pagemesh.cli.settings:KeysConfig",
        "pagemesh.cli.keys",
        positional="--action",
    ),
    "certificates": Command(
        "makes certificates for TLS between the parts: pagemesh certificates FOLDER",
        "pagemesh.cli.settings:CertificatesConfig",
        "pagemesh.cli.certificates",
        positional="--folder",
    ),
    "health": Command(
        "whether one process serves, for probes: pagemesh health HOST:PORT",
        "pagemesh.cli.settings:HealthConfig",
        "pagemesh.cli.health",
        positional="--address",
    ),
    "plan": Command(
        "how much memory a model needs: pagemesh plan MODEL",
        "pagemesh.cli.settings:PlanConfig",
        "pagemesh.cli.plan",
        positional="--model",
        reads="pagemesh.cli.plan:own_arguments",
    ),
    "doctor": Command(
        "looks at a running mesh, and says what is wrong and what to do",
        "pagemesh.cli.doctor.settings:DoctorConfig",
        "pagemesh.cli.doctor.run",
        positional="--url",
    ),
    "sim": Command(
        "how a mesh of any size would do under each routing policy",
        "pagemesh.sim.settings:SimConfig",
        "pagemesh.sim.run",
    ),
    "bench serve": Command(
        "an OpenAI endpoint under load, at one or several rates of requests",
        "pagemesh.bench.settings:BenchServeConfig",
        "pagemesh.bench.serve",
    ),
    "bench throughput": Command(
        "how much a model in this process answers when it is asked all at once",
        "pagemesh.bench.settings:BenchThroughputConfig",
        "pagemesh.bench.throughput",
    ),
    "bench latency": Command(
        "how long a model in this process takes for one batch",
        "pagemesh.bench.settings:BenchLatencyConfig",
        "pagemesh.bench.latency",
    ),
}

GROUPS = {"bench": "measures an endpoint, or a model in this process: pagemesh bench serve"}
"""First words of several commands, with a line for the list of commands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (the process's own when None); the exit code."""
    heed_sigterm()
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
    summaries = {name: command.summary for name, command in COMMANDS.items() if " " not in name}
    return "\n".join(
        [
            "usage: pagemesh [--version] [--help] COMMAND [OPTIONS]",
            "",
            "An LLM serving mesh. COMMAND starts one part of it, all of them, or looks ahead:",
            *_lines(summaries | GROUPS),
            "",
            "`pagemesh COMMAND --help` lists the options of each.",
        ]
    )


def group_usage(group: str) -> str:
    """Help of the commands with the same first word."""
    return "\n".join(
        [
            f"usage: pagemesh {group} [--help] COMMAND [OPTIONS]",
            "",
            *_lines({name: COMMANDS[f"{group} {name}"].summary for name in names_in(group)}),
            "",
            f"`pagemesh {group} COMMAND --help` lists the options of each.",
        ]
    )


def names_in(group: str) -> list[str]:
    """Second words of the commands with this first word."""
    return [name.removeprefix(f"{group} ") for name in COMMANDS if name.startswith(f"{group} ")]


def _lines(summaries: Mapping[str, str]) -> list[str]:
    width = max(map(len, summaries))
    return [f"  {name:<{width}}  {summary}" for name, summary in summaries.items()]


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
    if name in GROUPS:
        return _dispatch_in(name, arguments[1:])
    if name not in COMMANDS:
        return _fail("pagemesh", f"there is no command {name!r}; see pagemesh --help", EXIT_USAGE)
    return _run(name, arguments[1:])


def _dispatch_in(group: str, arguments: Sequence[str]) -> int:
    if not arguments:
        print(group_usage(group), file=sys.stderr)
        return EXIT_USAGE
    name, prog = arguments[0], f"pagemesh {group}"
    if name in ("-h", "--help"):
        print(group_usage(group))
        return 0
    if name not in names_in(group):
        return _fail(prog, f"there is no command {name!r}; see {prog} --help", EXIT_USAGE)
    return _run(f"{group} {name}", arguments[1:])


def _run(name: str, arguments: Sequence[str]) -> int:
    command = COMMANDS[name]
    prog = f"pagemesh {name}"
    if command.positional and arguments and not arguments[0].startswith("-"):
        arguments = [command.positional, *arguments]
    # Here, because it takes longer than all else that shows the list of commands.
    with loading():
        from pagemesh.cli.arguments import UsageError, parse
    try:
        if command.reads:
            arguments = _load(command.reads)(arguments)
        settings = parse(command.settings, prog, command.summary, arguments)
    except (UsageError, PagemeshError) as error:
        return _fail(prog, str(error), EXIT_USAGE)
    try:
        return _load(f"{command.module}:run")(settings) or 0
    except PagemeshError as error:
        return _fail(prog, error.message, EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    with loading():
        return getattr(importlib.import_module(module), attribute)


def _fail(prog: str, sentence: str, code: int) -> int:
    print(f"{prog}: {sentence}", file=sys.stderr)
    return code
