"""A worker process's server, in the test's own process and over a fake engine."""

from __future__ import annotations

from pagemesh.config import (
    MemberConfig,
    ModelConfig,
    ServerConfig,
    TracesConfig,
    WorkerConfig,
)
from pagemesh.worker.server import Role, WorkerServer
from tests.fakes.engine import FakeEngine
from tests.support.leaks import assert_nothing_leaked
from tests.support.metrics import with_engine


class FakeWorker:
    """A worker process's server over a fake engine."""

    def __init__(
        self,
        role: Role,
        worker_id: str,
        kvstore: str,
        engine: FakeEngine,
        model: str = "demo",
        grace_period: float = 0.2,
        traces: TracesConfig | None = None,
    ) -> None:
        config = WorkerConfig(
            model=ModelConfig(model="demo", served_model_name=model),
            member=MemberConfig(kvstore=kvstore, worker_id=worker_id),
            server=ServerConfig(grace_period=grace_period),
            traces=traces or TracesConfig(),
        )
        self.worker_id = worker_id
        self.engine = engine
        self.server = WorkerServer(config, role)

    async def start(self) -> None:
        await self.server.start()
        self.links = (await self.server.serve(self.engine)).links

    def metric(self, name: str, **labels: str) -> float:
        """The value of one of the worker's metrics; 0 when absent."""
        registry = self.server._metrics.registry
        return registry.get_sample_value(name, with_engine(name, labels)) or 0.0

    async def kill(self) -> None:
        """Break all connections at once, as the end of the process would."""
        await self.server._server._server.stop(None)

    async def close(self) -> None:
        """Nothing may be left in the engine."""
        await self.server.close()
        assert_nothing_leaked(self.engine)
