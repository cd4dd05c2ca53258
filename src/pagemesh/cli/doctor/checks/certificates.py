"""Whether certificates are valid, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pagemesh.cli.doctor.facts import Certificate, Examined, Facts
from pagemesh.cli.doctor.findings import Finding, Result, Status

NAME: Final = "certificates"

_DAY: Final = 24 * 3600.0

SOON_DAYS: Final = 14
"""So long before its end a certificate that nobody replaced is likely to be forgotten."""


def check(facts: Facts) -> Result:
    """Of the gateway, as clients see it, and of the processes, as they show them to each other."""
    gateway = facts.gateway
    shown = None if gateway is None else gateway.certificate
    left = {
        facts.name(each): seconds for each in facts.processes if (seconds := _seconds_left(each))
    }
    if shown is None and not left:
        return Result(NAME, "none is used", is_skipped=True)
    findings = [] if shown is None else list(_judge("gateway", shown))
    findings += [_soon(name, seconds) for name, seconds in left.items() if _is_soon(seconds)]
    everybody = [*left.values(), *([shown.seconds_left] if shown and shown.seconds_left else [])]
    summary = f"valid for {min(everybody) / _DAY:.0f} more days" if everybody else "the gateway's"
    return Result(NAME, summary, findings)


def _seconds_left(process: Examined) -> float | None:
    """Until the certificate of a process expires, by its own clock; None without one."""
    said = process.said
    if said is None or not said.HasField("certificate_expires_at"):
        return None
    return (said.certificate_expires_at.ToNanoseconds() - said.now.ToNanoseconds()) / 1e9


def _is_soon(seconds: float) -> bool:
    return seconds < SOON_DAYS * _DAY


def _soon(name: str, seconds: float) -> Finding:
    if seconds <= 0:
        status, what = Status.WRONG, f"Its certificate expired {-seconds / _DAY:.1f} days ago"
    else:
        status, what = Status.WARNING, f"Its certificate expires in {seconds / _DAY:.1f} days"
    return Finding(
        status,
        name,
        f"{what}; no other process talks to it then",
        "Replace the files of its --mesh-cert and --mesh-key by a rename, which needs no restart",
    )


def _judge(name: str, certificate: Certificate) -> Iterator[Finding]:
    if certificate.fault:
        yield Finding(
            Status.WRONG,
            name,
            f"Its certificate is not to be trusted: {certificate.fault}. Clients refuse to talk to it, and nothing"
            " was asked of it",
            "If an authority of your own signed it, name that with --ca-cert; else replace the files of"
            " --ssl-certfile and --ssl-keyfile by a rename, which needs no restart",
        )
    elif certificate.seconds_left is not None and _is_soon(certificate.seconds_left):
        yield Finding(
            Status.WARNING,
            name,
            f"Its certificate expires in {certificate.seconds_left / _DAY:.1f} days; clients then refuse to talk to"
            " it",
            "Replace the files of --ssl-certfile and --ssl-keyfile by a rename, which needs no restart",
        )
