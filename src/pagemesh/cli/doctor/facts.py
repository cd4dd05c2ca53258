"""What was gathered about a mesh: plain facts, which the checks read and nobody changes."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pagemesh.v1 import process_pb2, types_pb2


class Fault(enum.Enum):
    """Why a process did not say what it is."""

    NOBODY = "nobody listens there"
    NO_NAME = "the name of its host is not known"
    NO_WAY = "no way leads there"
    SILENT = "it takes connections and answers nothing"
    STRANGER = "something else listens there"
    NO_KEY = "it asks for an API key"
    OLD = "it does not know the question"
    UNTRUSTED = (
        "it does not accept the certificate that it is shown, or shows one that is not accepted"
    )
    NOT_ALLOWED = "the certificate that it was shown does not allow the question"
    UNASKED = "there was no time left to ask it"
    OTHER = "it failed"


class Reading(NamedTuple):
    """What a process said at one moment."""

    said: process_pb2.DescribeResponse
    offset: float
    """Seconds that its clock is ahead of this machine's."""
    uncertainty: float
    """Seconds by which that may be off: half of what question and answer took."""


class Lead(NamedTuple):
    """That somebody named a process."""

    address: str
    label: str
    """What it is said to be: a worker's id, "router" or "kvstore"."""
    source: str
    """Who named it."""
    left_seconds: float | None = None
    """How long ago it left the mesh, if it did."""


@dataclass(frozen=True, slots=True)
class Examined:
    """One address that was asked."""

    address: str
    leads: Sequence[Lead]
    readings: Sequence[Reading] = ()
    fault: Fault | None = None
    detail: str = ""
    """What gRPC said of the fault."""
    serves: bool | None = None
    """Whether its health check says that it serves; None without an answer."""

    @property
    def said(self) -> process_pb2.DescribeResponse | None:
        """What it said last."""
        return self.readings[-1].said if self.readings else None

    @property
    def label(self) -> str:
        """What it says it is, or else what others say."""
        said = self.said
        if said is not None and said.WhichOneof("part") == "worker":
            return said.worker.worker.worker_id
        return self.leads[0].label

    @property
    def left_seconds(self) -> float | None:
        """How long ago it left the mesh; None of one that somebody still counts on."""
        ages = [lead.left_seconds for lead in self.leads]
        known = [age for age in ages if age is not None]
        return min(known) if known and len(known) == len(ages) else None


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a server showed."""

    fault: str = ""
    """Why it is not to be trusted; empty when it is."""
    seconds_left: float | None = None
    """Until it expires; None when that could not be read."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """What the gateway answered."""

    url: str
    fault: str = ""
    """Why nothing came back; empty when something did."""
    answers: bool = False
    """Whether it answered what it needs no router for."""
    health_status: int | None = None
    health: Mapping[str, Any] = field(default_factory=dict)
    ready_status: int | None = None
    ready: Mapping[str, Any] = field(default_factory=dict)
    certificate: Certificate | None = None
    """None without TLS."""
    router_fault: Fault | None = None
    """Why no router could be asked through it."""
    router_detail: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was gathered."""

    gateway: Gateway | None = None
    """None when it was not asked for."""
    processes: Sequence[Examined] = ()
    reached: Mapping[str, process_pb2.ReachResponse] = field(default_factory=dict)
    """What workers came to that tried to reach others, by the address of who tried."""
    own_version: str = ""
    own_contract: str = ""

    def routers(self) -> list[tuple[str, process_pb2.RouterDescription]]:
        """Those that answered, with their names."""
        found = [each for each in self.processes if _part(each) == "router"]
        return [(self.name(each), each.said.router) for each in found if each.said is not None]

    def kvstores(self) -> list[tuple[str, process_pb2.KvStoreDescription]]:
        """Likewise."""
        found = [each for each in self.processes if _part(each) == "kvstore"]
        return [(self.name(each), each.said.kvstore) for each in found if each.said is not None]

    def workers(self) -> list[tuple[Examined, process_pb2.WorkerDescription]]:
        """Those that answered."""
        found = [each for each in self.processes if _part(each) == "worker"]
        return [(each, each.said.worker) for each in found if each.said is not None]

    def members(self) -> dict[str, process_pb2.MemberDescription]:
        """What the kvstores know of all members, by worker_id; from who is published to, where several know one."""
        found: dict[str, process_pb2.MemberDescription] = {}
        for _, kvstore in self.kvstores():
            for member in kvstore.members:
                worker_id = member.worker.worker_id
                if worker_id not in found or member.publishes_here:
                    found[worker_id] = member
        return found

    def known_workers(self) -> dict[str, types_pb2.WorkerInfo]:
        """Everybody's workers by their ids: the members, and without kvstores those that routers remember."""
        known = {worker_id: member.worker for worker_id, member in self.members().items()}
        for _, router in self.routers():
            for seen in router.workers:
                known.setdefault(seen.worker.worker_id, seen.worker)
        return known

    def name(self, process: Examined) -> str:
        """For people: a label alone where it is the only one of its kind, else with the address."""
        alike = [each for each in self.processes if each.label == process.label]
        return process.label if len(alike) == 1 else f"{process.label} at {process.address}"


def _part(process: Examined) -> str | None:
    return None if process.said is None else process.said.WhichOneof("part")
