"""Whether routers and workers give the same names to the blocks of the same prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pagemesh.cli.doctor.facts import Facts
from pagemesh.cli.doctor.findings import Finding, Result, Status
from pagemesh.cli.doctor.words import count, join, odd_ones
from pagemesh.v1 import process_pb2, types_pb2

NAME: Final = "parity"

_MISSES: Final = (
    "Nothing that it holds is ever found by what a prompt says, so it gets no credit for it"
)


def check(facts: Facts) -> Result:
    """Names who renders, tokenizes or names otherwise, and at which step that begins."""
    routers = facts.routers()
    if not routers:
        return Result(NAME, "no router answered, and only routers compare", is_skipped=True)
    findings = [
        *_routers_differ(facts),
        *(finding for name, router in routers for finding in _degraded(facts, name, router)),
    ]
    num_workers = len({seen.worker.worker_id for _, router in routers for seen in router.workers})
    return Result(
        NAME,
        f"template, tokenizer and names of {count(num_workers, 'worker')} compared by"
        f" {count(len(routers), 'router')}",
        findings,
    )


def _degraded(facts: Facts, name: str, router: process_pb2.RouterDescription) -> Iterator[Finding]:
    served = {model.name for model in router.models}
    for model in sorted(served):
        seen = [each for each in router.workers if each.worker.model_name == model]
        odd = [each for each in seen if each.difference]
        if len(odd) > 1 and len(odd) == len(seen) and _agree([each.worker for each in odd]):
            yield Finding(
                Status.WRONG,
                name,
                f"All workers of {model} agree with each other and differ from this router at the step"
                f" {odd[0].difference!r}: it is the router that is the odd one out. It finds nothing of what they"
                " hold",
                f"Give the router the workers' model folder, and restart it. Of each of them it says: {odd[0].advice}",
            )
            continue
        for each in odd:
            yield Finding(
                Status.WRONG,
                each.worker.worker_id,
                f"It is degraded: it differs from {name} at the step {each.difference!r}, the first at which they"
                f" come to something else. {_MISSES}",
                each.advice[:1].upper() + each.advice[1:],
            )


def _agree(workers: list[types_pb2.WorkerInfo]) -> bool:
    canaries = [worker.canary for worker in workers]
    return all(
        (canary.text_digest, canary.token_digest)
        == (canaries[0].text_digest, canaries[0].token_digest)
        for canary in canaries
    )


def _routers_differ(facts: Facts) -> Iterator[Finding]:
    models = sorted({model.name for _, router in facts.routers() for model in router.models})
    for model in models:
        for step in ("text_digest", "token_digest"):
            digests = {
                name: bytes(getattr(own.canary, step))
                for name, router in facts.routers()
                for own in router.models
                if own.name == model
            }
            odd = odd_ones(digests)
            if odd:
                what = "chat template renders" if step == "text_digest" else "tokenizer reads"
                yield Finding(
                    Status.WRONG,
                    join(sorted(odd)),
                    f"The {what} a conversation with {model} otherwise than other routers': the same request gets"
                    " another prompt, depending on the router",
                    "Give all routers the same model folder and the same --chat-template, and restart them",
                )
                break
