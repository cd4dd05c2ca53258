"""The workers of one model, with what decides who goes to them, when and where."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from pagemesh.config import RouterConfig
from pagemesh.membership.directory import Directory
from pagemesh.router.dispatch.dispatch import Dispatch
from pagemesh.router.dispatch.model_workers import ModelWorkers
from pagemesh.router.dispatch.waiting_room import WaitingRoom
from pagemesh.router.parity import Parity
from pagemesh.router.planner import Planner
from pagemesh.router.routing.decider import Decider
from pagemesh.router.session_pool import SessionPool
from pagemesh.router.workers import Workers
from pagemesh.telemetry.metrics import Metrics


class ModelCrew(NamedTuple):
    """Of one model."""

    workers: Workers
    planner: Planner
    dispatch: Dispatch


def make_crews(
    model_names: Sequence[str],
    directory: Directory,
    sessions: SessionPool,
    parity: Parity,
    config: RouterConfig,
    metrics: Metrics,
) -> tuple[WaitingRoom, list[ModelCrew]]:
    """Those of each model, and the room that their requests share until a worker has them."""
    room = WaitingRoom(config.max_waiting_requests)
    crews = []
    for model_name in model_names:
        workers = Workers(model_name, directory, sessions, parity)
        decider = Decider(config.routing, time.monotonic)
        lookup_timeout = config.routing.lookup_timeout
        planner = Planner(workers, directory, sessions, decider, lookup_timeout, metrics)
        known, num_routers = ModelWorkers(workers, decider), config.tenants.limits_shared_by
        dispatch = Dispatch(model_name, known, room, num_routers, metrics)
        crews.append(ModelCrew(workers, planner, dispatch))
    return room, crews
