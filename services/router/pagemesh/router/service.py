"""Wires a router together and runs it until it is told to stop."""

from __future__ import annotations

import asyncio

import structlog
import uvloop

from pagemesh.config import RouterConfig
from pagemesh.membership.directory import Directory
from pagemesh.router.console.state import MeshState
from pagemesh.router.embedding.embedder import Embedder
from pagemesh.router.generation.admission import Admission
from pagemesh.router.generation.generator import Generator
from pagemesh.router.in_progress import InProgress
from pagemesh.router.mesh_view import MeshView
from pagemesh.router.migration import Migrations
from pagemesh.router.model_crew import ModelCrew, make_crews
from pagemesh.router.models import Models, ModelService
from pagemesh.router.parity import Parity
from pagemesh.router.served_model import ServedModel
from pagemesh.router.servicers import services as rpc_services
from pagemesh.router.servicers.gate import Gate
from pagemesh.router.session_pool import SessionPool
from pagemesh.router.tenants.tenants import Tenants
from pagemesh.router.tracing import Tracing
from pagemesh.rpc.identity import Identity
from pagemesh.rpc.metrics_server import MetricsServer
from pagemesh.rpc.server import GrpcServer, stop_on_signals
from pagemesh.rpc.settling import settle
from pagemesh.telemetry.logs import configure_logging
from pagemesh.telemetry.older_names import make_metrics

_log = structlog.get_logger(__name__)


class RouterProcess:
    """start → serve → close. Serves when the tokenizers are loaded and it knows who is in the mesh, or soon after."""

    def __init__(self, config: RouterConfig) -> None:
        """Load the models' tokenizers; ConfigError naming what is wrong with a folder."""
        self._config = config
        self._served = [ServedModel.load(named, config) for named in config.served.models]
        self._metrics = make_metrics(config.metrics)
        self._metrics_server: MetricsServer | None = None
        self._identity = Identity.load(config.server.mesh, "router", self._metrics)
        self._directory = Directory(config.kvstore, identity=self._identity)
        self._sessions = SessionPool(self._identity)
        self._parity = Parity({model.name: model.tokenizer for model in self._served})
        self._tracing = Tracing(config.traces, self._metrics)
        self._tenants = Tenants(config.tenants, self._metrics)
        gate = Gate(self._tenants, self._metrics)
        self._server = GrpcServer(
            config.server,
            rpc_services.SERVICE_NAMES,
            self._tracing.around,
            gate,
            identity=self._identity,
            serves_clients=True,
        )

    async def start(self) -> str:
        """Begin to serve; gives the address. ConfigError when a port is taken."""
        address = await self._server.start()
        if self._config.server.metrics_port is not None:
            self._metrics_server = MetricsServer(
                self._config.server.host,
                self._config.server.metrics_port,
                self._metrics,
                self._identity,
            )
        await self._directory.start(address)
        self._parity.follow(self._directory)
        self._sessions.follow(self._directory)
        self._tenants.start()
        self._add_services(address)
        await self._sessions.meet(self._directory)
        await self._server.set_serving()
        _log.info(
            "serving",
            address=address,
            metrics_address=self._metrics_server.address if self._metrics_server else None,
            models=[model.name for model in self._served],
        )
        return address

    async def close(self) -> None:
        """Let running requests finish within the grace period, then stop. Idempotent."""
        await self._server.close()
        await self._directory.close()
        await self._sessions.close()
        await self._tenants.close()
        await asyncio.to_thread(self._tracing.close)
        if self._metrics_server is not None:
            self._metrics_server.close()
            self._metrics_server = None

    def _add_services(self, address: str) -> None:
        config, metrics = self._config, self._metrics
        state = MeshState(self._directory, self._sessions, self._parity, metrics)
        in_progress = InProgress()
        migrations = Migrations(config.migration, metrics)
        # Clients are told in the rest of it that the grace period is over.
        patience = self._server.grace_period - self._server.farewell
        self._server.describe_with(state.describe)
        self._server.show_metrics(metrics.page)
        # Else those who look would be waited for until the end of the grace period.
        self._server.on_drain(state.watchers.close)
        self._server.on_drain(lambda: in_progress.drain(patience))
        names = [model.name for model in self._served]
        room, crews = make_crews(
            names, self._directory, self._sessions, self._parity, config, metrics
        )
        services = [
            self._model_service(model, crew, state, in_progress, migrations)
            for model, crew in zip(self._served, crews, strict=True)
        ]
        served = config.served
        models = Models(services, served.aliases, served.unlisted)
        admission = Admission(room, [crew.dispatch for crew in crews], metrics)
        mesh = MeshView(crews, self._parity, metrics, self._directory, address, self._identity)
        rpc_services.add_services(self._server, models, admission, mesh, state, config)

    def _model_service(
        self,
        model: ServedModel,
        crew: ModelCrew,
        state: MeshState,
        in_progress: InProgress,
        migrations: Migrations,
    ) -> ModelService:
        metrics, tracing, name = self._metrics, self._tracing, model.name
        workers, planner, dispatch = crew
        placer = state.placer(tracing.placer(planner))
        generator = Generator(
            name,
            placer,
            model.tokenizer,
            metrics,
            in_progress,
            migrations,
            self._config.stream_interval,
            dispatch,
        )
        embedder = Embedder(model, workers, placer, metrics, in_progress, migrations, dispatch)
        lines = model.request_lines(self._config.request_log)
        return ModelService(
            model,
            workers,
            lines.generator(tracing.generator(name, state.generator(name, generator))),
            lines.embedder(tracing.embedder(name, state.embedder(name, embedder))),
        )


def run(config: RouterConfig) -> None:
    """Run a router until SIGTERM or SIGINT; ConfigError when it cannot start."""
    configure_logging(config.server, "router")
    uvloop.run(_run(config))


async def _run(config: RouterConfig) -> None:
    stop = stop_on_signals()
    process = RouterProcess(config)
    try:
        await process.start()
        settle()
        await stop.wait()
    finally:
        await process.close()
