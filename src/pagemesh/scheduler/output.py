"""Collects what becomes known between two deliveries to the engine's listener."""

from __future__ import annotations

from pagemesh.cache.block_pool import BlockPool
from pagemesh.core.engine import StepOutput
from pagemesh.core.kv import KvExport, KvGrant, KvProgress
from pagemesh.core.load import EngineLoad
from pagemesh.core.request import FinishReason, RequestOutput
from pagemesh.errors import PagemeshError
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.scheduler.kv_cache import KvCacheManager
from pagemesh.scheduler.request import Request


class StepOutputBuilder:
    """The next StepOutput in the making: at most one output per request."""

    def __init__(self, pool: BlockPool, kv_cache: KvCacheManager, num_layers: int) -> None:
        self._pool = pool
        self._kv_cache = kv_cache
        self._num_layers = num_layers
        self._outputs: dict[str, RequestOutput] = {}
        self._exports: list[KvExport] = []
        self._progress: list[KvProgress] = []
        self._grants: list[KvGrant] = []
        self._wants_snapshot = False
        # Before the first delivery everybody takes the engine to be empty.
        self._delivered_load = EngineLoad(num_free_blocks=pool.num_free_blocks)

    def add_output(
        self,
        request: Request,
        token_ids: tuple[int, ...] = (),
        reason: FinishReason | None = None,
        error: PagemeshError | None = None,
        logprobs: TokenLogprobs | None = None,
        embedding: bytes | None = None,
    ) -> None:
        """A new token of a request with its log probabilities, or its end, or both; or its embedding."""
        output = RequestOutput(
            request.request_id,
            token_ids,
            reason,
            error,
            request.num_cached_tokens or 0,
            request.num_received_tokens,
            embedding=embedding,
        )
        known = self._outputs.get(request.request_id)
        if known is not None:
            output = output._replace(
                token_ids=(*known.token_ids, *token_ids),
                logprobs=known.logprobs,
                prompt_logprobs=known.prompt_logprobs,
                cumulative_logprob=known.cumulative_logprob,
            )
        if logprobs is not None:
            output = output._replace(
                logprobs=(*(output.logprobs or ()), logprobs),
                cumulative_logprob=request.cumulative_logprob,
            )
        if token_ids and request.prompt_logprobs:
            output = output._replace(prompt_logprobs=tuple(request.prompt_logprobs))
            request.prompt_logprobs = []
        self._outputs[request.request_id] = output

    def add_refusal(self, request_id: str, error: PagemeshError) -> None:
        """A request that is not taken."""
        self._outputs[request_id] = RequestOutput(
            request_id, finish_reason=FinishReason.ERROR, error=error
        )

    def add_export(self, request: Request) -> None:
        """An export has its blocks, of which those with cached KV can be read."""
        block_ids, block_hashes = self._kv_cache.given_blocks(request)
        num_held_tokens = request.num_computed_tokens
        self._exports.append(KvExport(request.request_id, block_ids, block_hashes, num_held_tokens))
        if request.num_computed_tokens:
            self.add_progress(request)

    def add_progress(self, request: Request) -> None:
        """An export's blocks can be read, in all layers, as far as they are computed or imported."""
        num_tokens = min(request.num_computed_tokens, request.num_given_tokens)
        self._progress.append(KvProgress(request.request_id, num_tokens, self._num_layers))

    def add_grant(self, request: Request) -> None:
        """An import's blocks can be written behind the held ones."""
        block_ids, block_hashes = self._kv_cache.given_blocks(request)
        num_held_tokens = request.num_computed_tokens
        self._grants.append(KvGrant(request.request_id, num_held_tokens, block_ids, block_hashes))

    def want_snapshot(self) -> None:
        """Have the next StepOutput list all cached blocks."""
        self._wants_snapshot = True

    def take(self, load: EngineLoad, *, load_is_news: bool = True) -> StepOutput | None:
        """Everything since the last call, or None when there is nothing.

        Without `load_is_news`, a changed load alone waits for a later call.
        """
        events = self._pool.drain_events()
        # A chunk of a prompt, or the end of an export or pin, changes the load and says nothing else.
        load_news = load_is_news and load != self._delivered_load
        news = (
            self._outputs,
            self._exports,
            self._progress,
            self._grants,
            *events,
            self._wants_snapshot,
            load_news,
        )
        if not any(news):
            return None
        tells_of_cache = self._wants_snapshot or any(events)
        output = StepOutput(
            outputs=tuple(self._outputs.values()),
            exports=tuple(self._exports),
            progress=tuple(self._progress),
            grants=tuple(self._grants),
            stored_block_hashes=events.stored,
            removed_block_hashes=events.removed,
            cache_snapshot=self._pool.cached_hashes() if self._wants_snapshot else None,
            cache_digest=self._pool.cached_digest if tells_of_cache else None,
            load=load,
        )
        self._outputs, self._exports, self._progress, self._grants = {}, [], [], []
        self._wants_snapshot = False
        self._delivered_load = load
        return output
