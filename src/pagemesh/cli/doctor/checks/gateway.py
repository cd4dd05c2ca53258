"""Whether clients get what they ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pagemesh.cli.doctor.facts import Facts, Fault, Gateway
from pagemesh.cli.doctor.findings import Finding, Result, Status
from pagemesh.cli.doctor.words import join

NAME: Final = "gateway"


def check(facts: Facts) -> Result:
    """Whether it answers, and whether every model could be served through it."""
    gateway = facts.gateway
    if gateway is None:
        return Result(NAME, "not asked: no --url was given", is_skipped=True)
    findings = list(_judge(gateway))
    models = [str(model.get("model")) for model in gateway.health.get("models", ())]
    serves = f" and serves {join(models)}" if models and not findings else ""
    answers = "does not answer" if gateway.fault else "answers"
    return Result(NAME, f"{gateway.url} {answers}{serves}", findings)


def _judge(gateway: Gateway) -> Iterator[Finding]:
    if gateway.fault:
        yield _wrong(
            f"Asked at {gateway.url}: {gateway.fault}",
            "Start the mesh with `pagemesh up`, or say where it is with --url; a mesh without a gateway is looked"
            " at with --kvstore host:port",
        )
    elif gateway.certificate is not None and gateway.certificate.fault:
        # For the check of certificates.
        return
    elif gateway.router_fault is not None:
        yield _router_fault(gateway, gateway.router_fault)
    elif gateway.health_status != 200:
        missing = gateway.health.get("missing", "a router that serves")
        yield _wrong(
            f"/health says {gateway.health_status}: no request can be served. Missing is {missing}",
            "Start what is missing, or see below why it is not counted",
        )
    elif gateway.ready_status != 200:
        missing = join([str(name) for name in gateway.ready.get("missing", ())])
        yield _wrong(
            f"/ready says {gateway.ready_status}: nobody can run {missing or 'one of the models'}",
            "Start a decode worker of that model, or see below why those that there are do not count",
        )


def _router_fault(gateway: Gateway, fault: Fault) -> Finding:
    if fault is Fault.NO_KEY:
        return _wrong(
            "It asks for an API key, without which nothing more can be seen",
            "Give pagemesh doctor a key: --api-key, or PAGEMESH_API_KEY in the environment",
        )
    if fault is Fault.OLD:
        return _wrong(
            "It answers, but its router does not know what pagemesh doctor asks: it runs an older version of"
            " pagemesh, or is something else",
            "Run the same version of pagemesh everywhere, this command included",
        )
    if gateway.answers and gateway.health_status in (None, 503):
        return _wrong(
            "It answers, but no router behind it does: requests wait, and then get 503",
            "See whether the router runs, and its log; with --kvstore host:port, pagemesh doctor can look at the"
            " rest of the mesh meanwhile",
        )
    return _wrong(
        f"It answers HTTP, but no router through gRPC ({gateway.router_detail}): what listens there may be no"
        " gateway of pagemesh",
        "Check --url; behind a proxy that does not pass gRPC on, ask with --kvstore host:port",
    )


def _wrong(what: str, advice: str) -> Finding:
    return Finding(Status.WRONG, "gateway", what, advice)
