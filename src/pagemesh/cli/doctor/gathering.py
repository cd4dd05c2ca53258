"""Asks everybody, and whomever they name, at the same time and within one time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from pagemesh.cli.doctor.asking import examine, metadata_for
from pagemesh.cli.doctor.facts import Examined, Facts, Fault, Gateway, Lead
from pagemesh.cli.doctor.gateway import ask_gateway
from pagemesh.cli.doctor.leads import leads_of
from pagemesh.cli.doctor.local_mesh import LOOPBACK, local_leads
from pagemesh.cli.doctor.second_look import SecondLook
from pagemesh.cli.doctor.settings import DoctorConfig
from pagemesh.client.credentials import Metadata, key_metadata
from pagemesh.identity.roles import MeshRole
from pagemesh.rpc.identity import Identity
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import process_pb2

_FIRST_SHARE: Final = 0.7
"""Of the time, for finding everybody, half of it through the gateway; who is silent uses it up."""

_RANK: Final = {"router": 0, "kvstore": 1}
"""Kinds of process that are told of before workers."""

_MAX_AT_ONCE: Final = 128
"""Processes that are asked at the same time."""


class Gatherer:
    """Gathers facts about one mesh, once."""

    def __init__(self, config: DoctorConfig) -> None:
        self._config = config
        self._metadata: Metadata = key_metadata(config.api_key)
        self._identity = Identity.load(config.mesh, MeshRole.HEALTH, Metrics())
        self._found: dict[str, Examined] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._leads: dict[str, list[Lead]] = {}
        self._places = asyncio.Semaphore(_MAX_AT_ONCE)
        self._deadline = 0.0

    async def facts(self) -> Facts:
        """Everything that is known when the time is over, or nobody is left to be asked."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._config.timeout
        self._deadline = loop.time() + self._config.timeout * _FIRST_SHARE
        for address in self._config.kvstores:
            self._follow(Lead(address, "kvstore", "--kvstore"))
        gateway, through_it = None, None
        if self._config.gateway is not None:
            half = (loop.time() + self._deadline) / 2
            gateway, through_it = await ask_gateway(
                self._config.gateway, self._config, self._metadata, half
            )
        if through_it is not None:
            self._follow_all(leads_of(through_it.said))
        elif gateway is not None:
            self._follow_all(_local(gateway))
        while running := [task for task in self._asking.values() if not task.done()]:
            # All of them end by the deadline; some name others before.
            await asyncio.wait(
                running, timeout=self._config.timeout, return_when=asyncio.FIRST_COMPLETED
            )
        processes = _merge(self._processes())
        if through_it is not None and not any(
            _is_same(each, through_it.said) for each in processes
        ):
            # It listens on all addresses, and no kvstore has said under which one it is found.
            lead = Lead(self._config.gateway or "", "router", "the gateway")
            processes.append(Examined(lead.address, (lead,), (through_it,), serves=True))
        processes.sort(
            key=lambda each: (_RANK.get(each.label, len(_RANK)), each.label, each.address)
        )
        look = SecondLook(Facts(gateway, processes), self._metadata, self._identity, end)
        return await look.facts()

    def _follow_all(self, leads: Iterable[Lead]) -> None:
        for lead in leads:
            self._follow(lead)

    def _follow(self, lead: Lead) -> None:
        known = self._leads.setdefault(lead.address, [])
        if lead not in known:
            known.append(lead)
        if lead.address not in self._asking:
            self._asking[lead.address] = asyncio.create_task(self._ask(lead))

    async def _ask(self, lead: Lead) -> None:
        async with self._places:
            try:
                metadata = metadata_for(lead.label, self._metadata)
                examined = await examine(lead, self._deadline, metadata, self._identity)
            except Exception as error:
                # Task boundary: one odd answer must not keep the others from being heard.
                examined = Examined(lead.address, (lead,), fault=Fault.OTHER, detail=repr(error))
        self._found[lead.address] = examined
        if examined.said is not None:
            self._follow_all(leads_of(examined.said))

    def _processes(self) -> list[Examined]:
        return [
            replace(examined, leads=tuple(self._leads[address]))
            for address, examined in self._found.items()
        ]


def _local(gateway: Gateway) -> list[Lead]:
    """What this machine itself tells of the mesh behind a gateway of its own, through which no router answers."""
    parts = urlsplit(gateway.url)
    is_here = parts.hostname in LOOPBACK and gateway.router_fault is not Fault.NO_KEY
    return local_leads(parts.port or 80) if is_here and gateway.answers else []


def _merge(found: Sequence[Examined]) -> list[Examined]:
    """Each process once, under the first of the addresses under which it was found."""
    merged: list[Examined] = []
    for examined in found:
        said = examined.said
        same = [i for i, each in enumerate(merged) if said is not None and _is_same(each, said)]
        if same:
            known = merged[same[0]]
            merged[same[0]] = replace(known, leads=(*known.leads, *examined.leads))
        else:
            merged.append(examined)
    return merged


def _is_same(process: Examined, said: process_pb2.DescribeResponse) -> bool:
    own = process.said
    return own is not None and (own.host_name, own.address, own.started_at) == (
        said.host_name,
        said.address,
        said.started_at,
    )
