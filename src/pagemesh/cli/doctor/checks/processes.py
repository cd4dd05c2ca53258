"""Whether everybody answers and serves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pagemesh.cli.doctor.facts import Examined, Facts, Fault
from pagemesh.cli.doctor.findings import Finding, Result, Status
from pagemesh.cli.doctor.words import ago, count, join
from pagemesh.v1 import process_pb2

NAME: Final = "processes"

_ADVICE: Final = {
    Fault.NOBODY: "Look at the end of its log for why it ended, and start it again",
    Fault.NO_NAME: "Give it an address that everybody can look up, with --advertise or in --kvstore,"
    " or run pagemesh doctor where the name is known",
    Fault.NO_WAY: "Check the network and its rules between here and there, or run pagemesh doctor where the mesh"
    " runs",
    Fault.SILENT: "Look at the process itself: `ps -o stat= -p PID` says T when it was stopped, which"
    " `kill -CONT PID` ends; else see its log and the load of its machine, and restart it if it hangs",
    Fault.STRANGER: "See what listens at that address: another program, or a mesh that speaks TLS, for which pagemesh"
    " doctor needs --mesh-cert, --mesh-key and --mesh-ca; or correct the address in --kvstore or --advertise",
    Fault.NO_KEY: "Give pagemesh doctor a key: --api-key, or PAGEMESH_API_KEY in the environment",
    Fault.UNTRUSTED: "Compare --mesh-ca, --mesh-cert and --mesh-key of the two: one authority must have signed both"
    " certificates, neither may have expired, and its own must name what it is, such as kvstore.pagemesh",
    Fault.NOT_ALLOWED: "Give pagemesh doctor a certificate that names health.pagemesh",
    Fault.UNASKED: "Give pagemesh doctor more time with --timeout, or see first to those that are silent",
    Fault.OTHER: "See its log",
}


_UNCLEAR: Final = (Fault.OTHER, Fault.STRANGER, Fault.UNTRUSTED)
"""What gRPC says of them may tell more."""


def check(facts: Facts) -> Result:
    """Names who does not answer, who does not serve, and why."""
    if not facts.processes:
        return Result(NAME, "none was found", is_skipped=True)
    if _is_out_of_sight(facts):
        return Result(NAME, "none but the gateway can be reached from here", [_out_of_sight(facts)])
    findings = [finding for each in facts.processes for finding in _judge(facts, each)]
    well = [facts.name(each) for each in facts.processes if _is_well(each)]
    return Result(
        NAME,
        f"{join(well)} answer{'s' * (len(well) == 1)} and serve{'s' * (len(well) == 1)}"
        if well
        else "none serves",
        findings,
    )


def _is_well(process: Examined) -> bool:
    said = process.said
    return said is not None and said.state == process_pb2.PROCESS_STATE_SERVING


def _is_out_of_sight(facts: Facts) -> bool:
    """Whether a router answers through the gateway, and not one of the mesh's own addresses does."""
    others = [each for each in facts.processes if ":" in each.address and "//" not in each.address]
    is_known = facts.gateway is not None and len(others) < len(facts.processes)
    return is_known and bool(others) and not any(each.said for each in others)


def _out_of_sight(facts: Facts) -> Finding:
    addresses = join([each.address for each in facts.processes if "//" not in each.address])
    return Finding(
        Status.WRONG,
        "pagemesh doctor",
        f"A router answers through the gateway, but from this machine none of the mesh's own addresses can be"
        f" reached ({addresses})",
        "Run pagemesh doctor where the mesh runs, on its machine or in one of its containers; if its processes speak"
        " TLS with each other, give it a certificate that names health.pagemesh: --mesh-cert, --mesh-key, --mesh-ca",
    )


def _judge(facts: Facts, process: Examined) -> Iterator[Finding]:
    name, said = facts.name(process), process.said
    if said is None:
        # An old version is for the check of versions.
        if process.fault is not None and process.fault is not Fault.OLD:
            yield _unanswered(name, process, process.fault)
    elif said.state == process_pb2.PROCESS_STATE_STARTING:
        seconds = (said.now.ToNanoseconds() - said.started_at.ToNanoseconds()) / 1e9
        yield Finding(
            Status.WARNING,
            name,
            f"It has been loading for {count(round(seconds), 'second')} and takes no requests yet",
            "Wait; if it takes much longer than a model of its size should, see its log",
        )
    elif said.state == process_pb2.PROCESS_STATE_DRAINING:
        yield Finding(
            Status.WARNING,
            name,
            "It was told to stop: it finishes what it has and takes no new requests",
            "Nothing, if that was meant; else see who sends it SIGTERM",
        )
    elif process.serves is False:
        yield Finding(
            Status.WRONG,
            name,
            "It runs, but its health check says NOT_SERVING: whoever goes by that sends it nothing",
            "See its log, and restart it",
        )


def _unanswered(name: str, process: Examined, fault: Fault) -> Finding:
    where = f"{process.address} was named by {process.leads[0].source}, but"
    left = process.left_seconds
    if left is not None and fault is Fault.NOBODY:
        return Finding(
            Status.WARNING,
            name,
            f"It left the mesh {ago(left)}, and nobody listens at {process.address} any more",
            "Nothing, if it was stopped on purpose; else look at the end of its log, and start it again",
        )
    dropped = "" if left is None else f"; the kvstore dropped it {ago(left)}"
    detail = f" ({process.detail})" if fault in _UNCLEAR else ""
    return Finding(Status.WRONG, name, f"{where} {fault.value}{dropped}{detail}", _ADVICE[fault])
