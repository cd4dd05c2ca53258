"""`pagemesh up` from its first check to its last process."""

from __future__ import annotations

import asyncio
import importlib
import io
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pagemesh.cli.settings import UpConfig
from pagemesh.cli.up.console import Console, show_sample
from pagemesh.cli.up.credentials import Credentials
from pagemesh.cli.up.mesh import Mesh
from pagemesh.cli.up.plan import (
    LOOPBACK,
    MeshPlan,
    make_plan,
    num_ports,
)
from pagemesh.cli.up.readiness import held_ports, require_free
from pagemesh.cli.up.sharing import Shared, gpus_for, shared_by_workers
from pagemesh.errors import ConfigError
from pagemesh.gateway.tls import check_tls
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization import methods
from pagemesh.models.registry import choose_architecture
from pagemesh.models.resolve import resolve_model_path
from pagemesh.models.tensor_files import read_headers

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(config: UpConfig) -> None:
    """Run a mesh until SIGINT, SIGTERM or SIGHUP.

    Raises ConfigError before anything is started when the model, the port, a certificate or the index cannot be
    used, and where no temporary folder can be made.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The model may say what the terminal cannot show.
        sys.stdout.reconfigure(errors="replace")
    require_free(config.host, config.port)
    check_tls(config.client_tls)
    for model in config.served.models:
        _check_model(model.source, config)
    if config.index != "memory":
        # What it needs is not loaded for an index in memory.
        importlib.import_module("pagemesh.cli.up.store").require_store(config.index)
    gpus = gpus_for(config.hardware)
    with (
        _run_folder() as folder,
        held_ports(LOOPBACK, num_ports(config)) as ports,
        shared_by_workers(config, gpus) as shared,
    ):
        asyncio.run(_up(config, ports, Path(folder), gpus, shared))


def _run_folder() -> tempfile.TemporaryDirectory[str]:
    """Where parts have their sockets, and logs that nobody keeps."""
    try:
        return tempfile.TemporaryDirectory(prefix="pagemesh-", ignore_cleanup_errors=True)
    except OSError as error:
        raise ConfigError(
            "there is no folder to write temporary files into, which the parts need for sockets: mount one at /tmp,"
            f" or name one by TMPDIR ({error.strerror})"
        ) from error


def _check_model(source: str, config: UpConfig) -> None:
    """Refuse what every worker would refuse after it has loaded torch."""
    folder = resolve_model_path(source, config.hub)
    settings = ConfigJson.read(folder / "config.json")
    architecture = choose_architecture(folder, settings, config.model_impl)
    methods.choose_quantization(settings, config.quantization)
    if architecture is not None:
        architecture.make_spec(settings)
    read_headers(folder)


async def _up(
    config: UpConfig,
    ports: Sequence[int],
    run_folder: Path,
    gpus: Sequence[str],
    shared: Shared | None,
) -> None:
    credentials = Credentials.of(config.tenants)
    config = replace(config, tenants=replace(config.tenants, api_key=credentials.keys))
    log_folder = _log_folder(config, run_folder)
    access_log = None if config.log_dir is None else log_folder / "access.jsonl"
    plan = make_plan(config, ports, run_folder, access_log, gpus, shared)
    console = Console()
    certificate = None
    if config.tls:
        # What it needs is not loaded without.
        certificates = importlib.import_module("pagemesh.cli.up.credentials")
        certificate = certificates.issue_certificates(plan)
    mesh = Mesh(plan, log_folder, console, certificate)
    stop = _stop_on_signals(mesh)
    console.starting(plan.models, [part.name for part in plan.parts], log_folder)
    work = asyncio.create_task(_work(mesh, plan, credentials, console, with_sample=config.sample))
    stopped = asyncio.create_task(stop.wait())
    try:
        # Ends when the user says so, or when the mesh cannot be kept up.
        await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
        console.stopping()
    finally:
        work.cancel()
        stopped.cancel()
        await mesh.stop()
    console.stopped()


async def _work(
    mesh: Mesh, plan: MeshPlan, credentials: Credentials, console: Console, *, with_sample: bool
) -> None:
    await mesh.start()
    console.banner(plan.url, plan.models, credentials)
    if with_sample:
        await asyncio.to_thread(
            show_sample, plan.local_socket, plan.models[0], credentials, console
        )
    console.running()
    await mesh.watch()


def _stop_on_signals(mesh: Mesh) -> asyncio.Event:
    """An event that the first signal sets; the second one kills what still runs."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            mesh.kill()
        stop.set()

    for number in _SIGNALS:
        # What nohup has set stays as it is.
        if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return stop


def _log_folder(config: UpConfig, run_folder: Path) -> Path:
    folder = run_folder if config.log_dir is None else Path(config.log_dir).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--log-dir is {config.log_dir!r}: {error.strerror}") from error
    return folder
