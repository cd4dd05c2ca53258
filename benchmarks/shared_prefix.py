"""What a prefix is worth that many requests share: our engine with and without its prefix cache.

* Requests at once (64, or fewer with --quick) share 2,000 tokens and have 64 of their own; 32 tokens are generated
  for each.
* One request follows another with the same 2,048 tokens: the time to the first token, cold and cached.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from itertools import count

from engine_process import EngineSettings
from peers import OURS, start
from workload import Request, make_prompt

_SEED = 5_000
_SHARED, _OWN, _ANSWER = 2000, 64, 32
_CACHED = 2048
_REST = 16
"""Tokens behind the cached ones, which are computed in any case."""


def compare_sharing(
    settings: EngineSettings, vocab_size: int, num_requests: int, num_rounds: int
) -> dict[str, list[float]]:
    """Samples by figure; the rounds of both engines are interleaved."""
    settings = replace(settings, max_model_len=_CACHED + _OWN + _ANSWER)
    seeds = count(_SEED)

    def prompt(length: int) -> list[int]:
        return make_prompt(length, vocab_size, next(seeds))

    samples: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        engines = {
            way: stack.enter_context(
                start(OURS, replace(settings, enable_prefix_caching=way == "cached"))
            )
            for way in ("cached", "computed")
        }
        for engine in engines.values():
            engine.generate([Request(prompt(_OWN), 2)])
        for _ in range(num_rounds):
            shared, seconds = prompt(_SHARED), {}
            requests = [Request(shared + prompt(_OWN), _ANSWER) for _ in range(num_requests)]
            for way, engine in engines.items():
                seconds[way] = engine.generate(requests).seconds
                rate = num_requests * _ANSWER / seconds[way]
                samples[f"shared prefix {way}, tokens/s"].append(rate)
            samples["shared prefix cached over computed, x"].append(
                seconds["computed"] / seconds["cached"]
            )
            long = prompt(_CACHED)
            cold, cached = (
                engines["cached"].generate([Request(long + prompt(_REST), 1)]).seconds * 1e3
                for _ in range(2)
            )
            samples[f"TTFT {_CACHED} cold, ms"].append(cold)
            samples[f"TTFT {_CACHED} cached, ms"].append(cached)
            samples["TTFT cold over cached, x"].append(cold / cached)
    return samples
