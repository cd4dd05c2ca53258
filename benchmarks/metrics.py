"""What measuring costs a worker: seconds per engine step with 64 requests that decode, and per request.

    python benchmarks/metrics.py

Nothing but the metrics runs. A step's hot path is one observation per token, and counters once per step.
"""

from __future__ import annotations

import timeit
from typing import cast

from pagemesh.core.engine import Engine, EngineInfo, StepOutput
from pagemesh.core.kv import KvLayout
from pagemesh.core.load import EngineLoad
from pagemesh.core.request import EngineRequest, FinishReason, RequestOutput
from pagemesh.telemetry.metrics import Metrics
from pagemesh.worker.engine_metrics import EngineMetrics

NUM_REQUESTS = 64
ROUNDS = 15


class Idle:
    """As much of an engine as its metrics look at."""

    info = EngineInfo("none", KvLayout.uniform(16, 2, 2, 64, "bfloat16"), 1000, 2048, NUM_REQUESTS)

    def load(self) -> EngineLoad:
        """Nothing is going on."""
        return EngineLoad(num_free_blocks=1000)


def outputs(reason: FinishReason | None = None) -> StepOutput:
    """A token for each request."""
    return StepOutput(
        outputs=[RequestOutput(str(number), (1,), reason) for number in range(NUM_REQUESTS)]
    )


def main() -> None:
    """Print microseconds, the best of some rounds."""
    metrics = EngineMetrics(Metrics(), "demo", cast(Engine, Idle()))
    requests = [EngineRequest(str(number), tuple(range(100))) for number in range(NUM_REQUESTS)]

    def submit() -> None:
        for request in requests:
            metrics.on_submit(request)

    def life() -> None:
        submit()
        metrics.on_step(outputs())
        metrics.on_step(outputs(FinishReason.LENGTH))

    submit()
    step = outputs()
    metrics.on_step(step)
    per_step = min(timeit.repeat(lambda: metrics.on_step(step), number=500, repeat=ROUNDS)) / 500
    metrics.on_step(outputs(FinishReason.LENGTH))
    per_life = min(timeit.repeat(life, number=50, repeat=ROUNDS)) / 50
    print(f"step with {NUM_REQUESTS} tokens: {per_step * 1e6:.0f} us")
    print(f"token: {per_step / NUM_REQUESTS * 1e6:.2f} us")
    print(f"request with two tokens: {per_life / NUM_REQUESTS * 1e6:.1f} us")


if __name__ == "__main__":
    main()
