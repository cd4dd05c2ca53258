"""One call's embeddings, from submission until all are there."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pagemesh.core.engine import EngineInfo
from pagemesh.core.request import EngineRequest, FinishReason
from pagemesh.core.request import RequestOutput as EngineOutput
from pagemesh.engine.engine import EngineCore
from pagemesh.errors import InvalidRequestError, UnavailableError
from pagemesh.llm.inbox import Deliveries, Progress
from pagemesh.llm.outputs import EmbeddingOutput, EmbeddingRequestOutput
from pagemesh.llm.prompts import EncodedPrompt, Prompt, at, read_prompts
from pagemesh.scheduler.limits import check_request
from pagemesh.tokenizer.tokenizer import Tokenizer


class Embedder:
    """Embeds prompts on one engine."""

    def __init__(self, engine: EngineCore, deliveries: Deliveries, tokenizer: Tokenizer) -> None:
        """`deliveries` listens to the engine, or will."""
        self._engine = engine
        self._deliveries = deliveries
        self._tokenizer = tokenizer

    def run(
        self, prompts: Prompt | Sequence[Prompt], call: str, *, shows_progress: bool
    ) -> list[EmbeddingRequestOutput]:
        """Embed prompts, in their order; nothing is left in the engine, however this ends.

        Raises InvalidRequestError naming the first prompt that can never be embedded, UnsupportedError
        when the model embeds nothing, UnavailableError when the engine is stopped already, and
        InternalError when it died or hangs.
        """
        encoded = read_prompts(prompts, self._tokenizer)
        vocab_size = self._tokenizer.vocab_size
        requests = _make_requests(encoded, self._engine.info, vocab_size, call)
        waiting = dict(zip(requests, encoded, strict=True))
        ends: dict[str, EngineOutput] = {}
        with (
            Progress(len(encoded), shown=shows_progress) as progress,
            self._deliveries.inbox(list(requests), self._engine.check) as inbox,
        ):
            try:
                for request in requests.values():
                    self._engine.submit(request)
                while waiting:
                    for output in inbox.get():
                        if output.finish_reason is not None:
                            ends[output.request_id] = output
                            prompt = waiting.pop(output.request_id)
                            progress.add(0, len(prompt.token_ids))
            finally:
                for request_id in waiting:
                    self._engine.cancel(request_id)
        return [
            _output(prompt, ends[request_id])
            for request_id, prompt in zip(requests, encoded, strict=True)
        ]


def _make_requests(
    prompts: Sequence[EncodedPrompt], info: EngineInfo, vocab_size: int, call: str
) -> dict[str, EngineRequest]:
    requests = {}
    for index, prompt in enumerate(prompts):
        request = EngineRequest(f"{call}-{index}", prompt.token_ids, embed=True)
        try:
            check_request(request, info, vocab_size)
        except InvalidRequestError as error:
            raise at(f"prompts[{index}]", error) from error
        requests[request.request_id] = request
    return requests


def _output(prompt: EncodedPrompt, end: EngineOutput) -> EmbeddingRequestOutput:
    error = end.error
    if end.finish_reason is FinishReason.CANCELLED:
        error = UnavailableError("the engine was stopped")
    embedding = end.embedding or b""
    return EmbeddingRequestOutput(
        request_id=end.request_id,
        prompt=prompt.text,
        prompt_token_ids=prompt.token_ids,
        outputs=EmbeddingOutput(struct.unpack(f"<{len(embedding) // 4}f", embedding)),
        num_cached_tokens=end.num_cached_tokens,
        error=error,
    )
