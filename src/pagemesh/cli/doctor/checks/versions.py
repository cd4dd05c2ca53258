"""Whether everybody runs the same pagemesh, and understands the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from pagemesh.cli.doctor.facts import Facts, Fault
from pagemesh.cli.doctor.findings import Finding, Result, Status
from pagemesh.cli.doctor.words import does, join, odd_ones, usual

NAME: Final = "versions"


class _Release(NamedTuple):
    version: str
    contract: str


def check(facts: Facts) -> Result:
    """Names the processes that are of another version than most, and the workers with another torch."""
    releases = {
        facts.name(each): _Release(each.said.version, each.said.contract_digest)
        for each in facts.processes
        if each.said is not None
    }
    findings = [*_too_old(facts), *_odd_releases(releases), *_odd_torch(facts)]
    most = usual(releases.values())
    if most is None:
        return Result(NAME, "nobody told one", findings, is_skipped=True)
    own = _Release(facts.own_version, facts.own_contract)
    if own not in releases.values():
        findings.append(
            Finding(
                Status.WARNING,
                "pagemesh doctor",
                f"This command is pagemesh {own.version}, the mesh runs {most.version}: it may miss or misread"
                " something",
                "Run it from the same installation as the mesh",
            )
        )
    everywhere = "everywhere" if not odd_ones(releases) else "on most"
    return Result(NAME, f"pagemesh {most.version} {everywhere}", findings)


def _too_old(facts: Facts) -> Iterator[Finding]:
    for process in facts.processes:
        if process.fault is Fault.OLD:
            yield Finding(
                Status.WRONG,
                facts.name(process),
                "It does not know what pagemesh doctor asks: it runs an older version of pagemesh",
                "Run the same version of pagemesh everywhere",
            )


def _odd_releases(releases: dict[str, _Release]) -> Iterator[Finding]:
    odd, most = odd_ones(releases), usual(releases.values())
    for release in dict.fromkeys(odd.values()):
        names = [name for name, value in odd.items() if value == release]
        others = f"pagemesh {most.version}" if most and most != release else "another build"
        if most is not None and release.contract == most.contract:
            status, leads_to = (
                Status.WARNING,
                "They understand each other, but may behave differently",
            )
        else:
            status, leads_to = (
                Status.WRONG,
                "Their messages differ: what one sends, another may ignore or refuse",
            )
        yield Finding(
            status,
            join(names),
            f"{does(names, 'run').capitalize()} pagemesh {release.version}, others {others}. {leads_to}",
            "Run the same version of pagemesh everywhere; during a rolling update, finish it",
        )


def _odd_torch(facts: Facts) -> Iterator[Finding]:
    models = {worker.worker.model_name for _, worker in facts.workers()}
    for model in sorted(models):
        versions = {
            facts.name(each): each.said.package_versions["torch"]
            for each, worker in facts.workers()
            if worker.worker.model_name == model and each.said is not None
        }
        told = {name: version for name, version in versions.items() if version}
        for name, version in odd_ones(told).items():
            yield Finding(
                Status.WARNING,
                name,
                f"It computes {model} with torch {version}, others with another version: a token may come out"
                " differently there, and after a move in the middle of an answer",
                "Install the same version of torch for all workers of a model",
            )
