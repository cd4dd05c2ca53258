"""What becomes of a call of which a part failed."""

from __future__ import annotations

from typing import TypeVar

import structlog

from pagemesh.llm.outputs import EmbeddingRequestOutput, RequestOutput

log = structlog.get_logger(__name__)

Output = TypeVar("Output", RequestOutput, EmbeddingRequestOutput)


def without_failures(outputs: list[Output]) -> list[Output]:
    """The outputs, with a word about those that failed; raises when there are no others."""
    failed = [output for output in outputs if output.error is not None]
    for output in failed:
        log.warning("request failed", request_id=output.request_id, error=str(output.error))
    if failed and len(failed) == len(outputs):
        assert failed[0].error is not None
        raise failed[0].error
    return outputs
