"""Continuous against static batching, on our engine with as many slots in each.

* continuous: the slot of a request that has ended goes to the next one in the next step.
* static, finished rows computed on: a batch takes as many requests as there are slots, each of its rows is
  computed until the longest answer has ended, and then the next batch begins. FasterTransformer (Yu et al.
  2022, Orca, section 3) and `generate` of transformers do so. What lies past the end of an answer counts
  for nothing.
* static, finished rows dropped: the same batches, but rows that have ended are computed no more, so that
  later steps are cheaper. It shows what empty slots alone cost.

Prompts of a batch are not padded to one length, which would make static batches slower still.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count

from engine_process import EngineProcess
from workload import Request, make_prompt, make_requests

_SEED = 1_000


def compare_batching(
    engine: EngineProcess, vocab_size: int, num_seats: int, num_batches: int, num_rounds: int
) -> dict[str, list[float]]:
    """Tokens per second that were asked for, by the way of batching; the engine has so many slots.

    The ways alternate, each with prompts of its own: none finds another's in the prefix cache.
    """
    lengths = make_requests(num_batches * num_seats, vocab_size, _SEED)
    num_tokens = sum(request.num_tokens for request in lengths)
    seeds = count(_SEED + 1)
    rates = defaultdict(list)

    def fresh() -> list[Request]:
        return [
            one._replace(prompt=make_prompt(len(one.prompt), vocab_size, next(seeds)))
            for one in lengths
        ]

    for _ in range(num_rounds):
        seconds = {
            "continuous": engine.generate(fresh()).seconds,
            "static, finished rows computed on": sum(
                engine.generate(_as_long_as_the_longest(batch)).seconds
                for batch in _batches(fresh(), num_seats)
            ),
            "static, finished rows dropped": sum(
                engine.generate(batch).seconds for batch in _batches(fresh(), num_seats)
            ),
        }
        for way, taken in seconds.items():
            rates[way].append(num_tokens / taken)
    return rates


def _batches(requests: Sequence[Request], size: int) -> Iterator[Sequence[Request]]:
    for begin in range(0, len(requests), size):
        yield requests[begin : begin + size]


def _as_long_as_the_longest(batch: Sequence[Request]) -> list[Request]:
    num_tokens = max(request.num_tokens for request in batch)
    return [request._replace(num_tokens=num_tokens) for request in batch]
