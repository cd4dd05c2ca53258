"""Whether every model has workers that fit together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pagemesh.cli.doctor.facts import Facts
from pagemesh.cli.doctor.findings import Finding, Result, Status
from pagemesh.cli.doctor.words import count, does, join, odd_ones
from pagemesh.membership.roster import arithmetic_classes, describe_mixture
from pagemesh.v1 import process_pb2, types_pb2

NAME: Final = "models"

_MISMATCH_ADVICE: Final = {
    "MODEL_MISMATCH": "Give it the same model folder, --revision and --dtype as the others, or another"
    " --served-model-name",
    "LAYOUT_MISMATCH": "Give it the same --block-size and --kv-cache-dtype as the others",
}


def check(facts: Facts) -> Result:
    """Fingerprints, layouts and arithmetic within each model, and whether somebody generates and somebody asks."""
    known = facts.known_workers()
    models = sorted({info.model_name for info in known.values()} | _served(facts))
    if not models:
        return Result(NAME, "none is known", is_skipped=True)
    findings = [*_refused(facts)]
    for model in models:
        workers = [info for info in known.values() if info.model_name == model]
        findings += [*_odd_fingerprints(model, workers), *_missing(facts, model, workers)]
        findings += _troubled(workers)
        findings += [*_mixed_arithmetic(model, workers), *_useless_prefill(model, workers)]
        findings += _odd_lengths(model, workers)
    counts = [f"{model}: {_crew(known.values(), model)}" for model in models]
    return Result(NAME, "; ".join(counts), findings)


def _crew(workers: Iterable[types_pb2.WorkerInfo], model: str) -> str:
    own = [info for info in workers if info.model_name == model]
    num_decode = sum(info.role == types_pb2.WORKER_ROLE_DECODE for info in own)
    return f"{num_decode} decode, {len(own) - num_decode} prefill"


def _served(facts: Facts) -> set[str]:
    return {model.name for _, router in facts.routers() for model in router.models}


def _refused(facts: Facts) -> Iterator[Finding]:
    told: dict[str, process_pb2.RefusedWorker] = {}
    for _, kvstore in facts.kvstores():
        for refused in kvstore.refused:
            if refused.reason in _MISMATCH_ADVICE:
                told[refused.worker.worker_id] = refused
    for worker_id, refused in told.items():
        yield Finding(
            Status.WRONG,
            worker_id,
            f"The kvstore does not let it into the mesh: {refused.message}. It runs, and gets no requests",
            _MISMATCH_ADVICE[refused.reason],
        )


def _odd_fingerprints(model: str, workers: Sequence[types_pb2.WorkerInfo]) -> Iterator[Finding]:
    """Kvstores refuse such workers, but each only beside those that it knows."""
    prints = {info.worker_id: info.model_fingerprint for info in workers}
    for worker_id, fingerprint in odd_ones(prints).items():
        yield Finding(
            Status.WRONG,
            worker_id,
            f"It serves as {model} another model than most of its workers (fingerprint {fingerprint[:16]}):"
            " answers depend on where a request goes, and KV cannot be exchanged",
            _MISMATCH_ADVICE["MODEL_MISMATCH"],
        )
    layouts = {info.worker_id: info.kv_layout.SerializeToString() for info in workers}
    for worker_id in odd_ones(layouts):
        if worker_id not in odd_ones(prints):
            yield Finding(
                Status.WRONG,
                worker_id,
                f"Its KV blocks have another shape than those of most workers of {model}: it can exchange none"
                " with them",
                _MISMATCH_ADVICE["LAYOUT_MISMATCH"],
            )


def _missing(
    facts: Facts, model: str, workers: Sequence[types_pb2.WorkerInfo]
) -> Iterator[Finding]:
    served = _served(facts)
    can_generate = any(info.role == types_pb2.WORKER_ROLE_DECODE for info in workers)
    if model in served and not can_generate:
        yield Finding(
            Status.WRONG,
            model,
            "No decode worker of this model is in the mesh: requests for it are refused with 503",
            f"Start one: pagemesh decode --model … --served-model-name {model} --kvstore …; one that runs and is not"
            " counted is named above or below",
        )
    if served and model not in served:
        names = sorted(info.worker_id for info in workers)
        yield Finding(
            Status.WARNING,
            model,
            f"{join(names)} {does(names, 'serve')} it, and no router was told of it: nobody can ask for it."
            f" The routers serve {join(sorted(served))}",
            "Start the routers with --model for it too, or the workers with the --served-model-name that is meant",
        )


def _troubled(workers: Sequence[types_pb2.WorkerInfo]) -> Iterator[Finding]:
    for info in workers:
        if info.identity_trouble:
            yield Finding(
                Status.WARNING,
                info.worker_id,
                f"Its check at load found {info.identity_trouble}",
                "Say so to the project, with the processor or GPU and its driver; --require-identical-tokens has such"
                " a worker refuse to start",
            )


def _mixed_arithmetic(model: str, workers: Sequence[types_pb2.WorkerInfo]) -> Iterator[Finding]:
    what = describe_mixture(model, arithmetic_classes(workers))
    if what is not None:
        yield Finding(
            Status.WARNING,
            model,
            what,
            "Run all its workers on one kind of processor or GPU, with the same version of everything, or, on CPUs, with"
            " the --cpu-isa that all have, or serve each kind under a --served-model-name of its own, unless that is"
            " meant",
        )


def _useless_prefill(model: str, workers: Sequence[types_pb2.WorkerInfo]) -> Iterator[Finding]:
    decoders = [info for info in workers if info.role == types_pb2.WORKER_ROLE_DECODE]
    usable = {_exchange_key(info) for info in decoders}
    useless = [
        info.worker_id
        for info in workers
        if info.role == types_pb2.WORKER_ROLE_PREFILL and _exchange_key(info) not in usable
    ]
    if useless and decoders:
        yield Finding(
            Status.WARNING,
            join(useless),
            f"No decode worker of {model} can use the KV from there, whose fingerprint, arithmetic, shape or names"
            f" of blocks differ: {count(len(useless), 'prefill worker')} for nothing",
            "Give prefill and decode workers the same model, --dtype, --block-size, --kv-cache-dtype and version, on"
            " the same kind of processor or GPU",
        )


def _exchange_key(info: types_pb2.WorkerInfo) -> tuple[str, str, bytes, bytes]:
    return (
        info.model_fingerprint,
        info.arithmetic,
        info.kv_layout.SerializeToString(deterministic=True),
        info.canary.block_digest,
    )


def _odd_lengths(model: str, workers: Sequence[types_pb2.WorkerInfo]) -> Iterator[Finding]:
    lengths = {
        info.worker_id: info.max_model_len
        for info in workers
        if info.role == types_pb2.WORKER_ROLE_DECODE
    }
    if len(set(lengths.values())) > 1:
        shorter = sorted(name for name, length in lengths.items() if length < max(lengths.values()))
        yield Finding(
            Status.NOTE,
            join(shorter),
            f"{does(shorter, 'Take').capitalize()} shorter contexts of {model} than others: long requests go past"
            " them",
            "Give all its workers the same --max-model-len, unless that is meant",
        )
