"""How many tokens an engine computed: what came from a cache or from others does not count."""

from __future__ import annotations

from collections.abc import Callable

from pagemesh.engine.engine import EngineCore
from pagemesh.engine.runner import LayerProgress, PendingStep
from pagemesh.scheduler.batch import Batch


class ComputedTokens:
    """Counts from now on; to be made before the engine is started."""

    def __init__(self, engine: EngineCore) -> None:
        runner = engine._loop._runner
        self.count = 0
        self._launch: Callable[[Batch, LayerProgress | None], PendingStep] = runner.launch
        runner.launch = self._counted  # type: ignore[method-assign]

    def _counted(self, batch: Batch, progress: LayerProgress | None = None) -> PendingStep:
        self.count += sum(len(sequence.token_ids) for sequence in batch.sequences)
        return self._launch(batch, progress)
