"""Of which classes of arithmetic a model's workers are, and what it means when that is more than one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pagemesh.messages import describe_arithmetic
from pagemesh.v1 import types_pb2

_MOST_NAMES: Final = 6
"""Of workers of a class that the sentence lists; of more it gives the number."""


def arithmetic_classes(workers: Iterable[types_pb2.WorkerInfo]) -> dict[str, list[str]]:
    """Ids of the workers of each class, in order; those that do not say are a class of their own."""
    classes: dict[str, list[str]] = {}
    for info in sorted(workers, key=lambda each: (each.arithmetic, each.worker_id)):
        classes.setdefault(info.arithmetic, []).append(info.worker_id)
    return classes


def describe_mixture(model: str, classes: Mapping[str, Sequence[str]]) -> str | None:
    """What is so, and what it leads to, without a full stop; None where all workers of the model compute alike."""
    if len(classes) < 2:
        return None
    kinds = [f"{describe_arithmetic(name)} ({_some(ids)})" for name, ids in classes.items()]
    return (
        f"Workers of {model} compute with {len(kinds)} kinds of arithmetic: {', '.join(kinds[:-1])} and {kinds[-1]}."
        " KV does not travel from one kind to the other, and an answer that has to move there may go on with other"
        " tokens"
    )


def _some(worker_ids: Sequence[str]) -> str:
    if len(worker_ids) > _MOST_NAMES:
        num_more = len(worker_ids) - _MOST_NAMES + 1
        worker_ids = [*worker_ids[: _MOST_NAMES - 1], f"{num_more} more"]
    return ", ".join(worker_ids)
