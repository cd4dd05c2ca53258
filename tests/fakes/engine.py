"""An engine without a model: the real scheduler and engine thread over a runner that computes by hand.

Its "KV" of a token is the token's id at every place of the token's slot, so a block table that is
wrong, a slot that was not written and KV that did not travel all end a request with an ERROR output.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pagemesh.config import SchedulerConfig
from pagemesh.core.engine import EngineInfo, Pooling
from pagemesh.core.kv import KvLayout
from pagemesh.core.load import PrefillRate
from pagemesh.core.request import EngineRequest
from pagemesh.engine.engine import EngineCore
from pagemesh.engine.runner import LayerProgress
from pagemesh.errors import KvIntegrityError
from pagemesh.kv_memory.memory import KvMemory, open_memory
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.structured.compiler import GrammarCompiler
from pagemesh.scheduler.batch import Batch, BlockMoves, StepResult
from pagemesh.scheduler.estimates import StepCosts
from pagemesh.scheduler.scheduler import Scheduler

VOCAB_SIZE = 1000
NUM_SPECIAL_TOKENS = 10
"""The fake never generates the first ids, where tokenizers have their special tokens."""


def next_token(context: Sequence[int], seed: int = 0) -> int:
    """What the fake samples after `context`: a function of all tokens and the seed."""
    digest = zlib.crc32(struct.pack(f"<{len(context)}I", *context), seed & 0xFFFFFFFF)
    return NUM_SPECIAL_TOKENS + digest % (VOCAB_SIZE - NUM_SPECIAL_TOKENS)


def expected_tokens(prompt: Sequence[int], num_tokens: int, seed: int = 0) -> tuple[int, ...]:
    """The `num_tokens` tokens that the fake generates after the prompt."""
    context = list(prompt)
    for _ in range(num_tokens):
        context.append(next_token(context, seed))
    return tuple(context[len(prompt) :])


def fake_logprobs(token_id: int, num_top: int) -> TokenLogprobs:
    """What the fake says of a token; float32 holds it exactly."""
    top = range(num_top)
    return TokenLogprobs(token_id, -token_id / 1024, 1, tuple(top), tuple(-float(i) for i in top))


def fake_states(token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """The fake's hidden states [N, 3]: the token's id, its square and 1."""
    ids = np.array(token_ids, np.float32)
    return np.stack([ids, ids * ids, np.ones_like(ids)], axis=1)


class FakeKv(KvMemory):
    """KV memory with a view of float32; unwritten slots are NaN. Shared when it lies behind a descriptor."""

    def __init__(self, layout: KvLayout, num_blocks: int, descriptor: int | None = None) -> None:
        super().__init__(layout, num_blocks, descriptor)
        # [layer, 2, block, slot, kv head, head dim]
        shape = (layout.num_layers, 2, num_blocks, layout.block_size)
        self.memory = self.bytes.view(np.float32).reshape((*shape, *layout.group[1:]))
        self.memory[:] = np.nan


class FakeStep:
    """A pending step, computed when its result is asked for: as late as a device may be."""

    def __init__(
        self,
        compute: Callable[[Batch, LayerProgress | None], StepResult],
        batch: Batch,
        watch: LayerProgress | None = None,
    ) -> None:
        self._compute = compute
        self._watch = watch
        # Block tables grow while the step is in flight.
        self._batch = replace(
            batch, sequences=[s._replace(block_ids=tuple(s.block_ids)) for s in batch.sequences]
        )

    def sample(self) -> None:
        pass

    def compute(self) -> None:
        """Compute now."""
        result = self.result()
        self._compute = lambda *_: result

    def result(self) -> StepResult:
        return self._compute(self._batch, self._watch)


class FakeRunner:
    """Writes token ids as KV and samples from what it reads back; `pace` seconds per step."""

    def __init__(self, kv: FakeKv, pace: float = 0.0, num_swap_blocks: int = 0) -> None:
        self._kv = kv
        self._swap = np.full_like(kv.memory[:, :, :1], np.nan).repeat(num_swap_blocks, axis=2)
        self._block_size = kv.memory.shape[3]
        self.pace = pace
        self.hurries = threading.Event()
        """Once set, steps take no time."""
        self.before_layer: Callable[[int], object] = lambda layer: None
        """Called before the KV of a step is written in a layer."""
        self._sampled: Sequence[int] = ()

    def move(self, moves: BlockMoves) -> None:
        cache, swap = self._kv.memory, self._swap
        for block_id, swap_id in moves.swap_outs:
            swap[:, :, swap_id] = cache[:, :, block_id]
        for swap_id, block_id in moves.swap_ins:
            cache[:, :, block_id] = swap[:, :, swap_id]
        sources = [cache[:, :, source].copy() for source, _ in moves.copies]
        for content, (_, target) in zip(sources, moves.copies, strict=True):
            cache[:, :, target] = content

    def launch(self, batch: Batch, watch: LayerProgress | None = None) -> FakeStep:
        return FakeStep(self.execute, batch, watch)

    def execute(self, batch: Batch, watch: LayerProgress | None = None) -> StepResult:
        """Compute a batch at once."""
        self.hurries.wait(self.pace)
        self._write(batch, watch)
        # A step behind one that fails computes with anything.
        self._sampled = [0] * len(batch.sequences)
        sampled: list[int] = []
        logprobs: dict[str, TokenLogprobs] = {}
        prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
        pooled: dict[str, npt.NDArray[np.float32]] = {}
        for sequence in batch.sequences:
            end = sequence.start + len(sequence.token_ids)
            blocks = np.repeat(np.array(sequence.block_ids), self._block_size)[:end]
            slots = np.arange(end) % self._block_size
            context = self._kv.memory[:, :, blocks, slots]  # [layer, 2, token, kv head, head dim]
            if not (context == context[:1, :1, :, :1, :1]).all():
                raise KvIntegrityError(f"KV of {sequence.request_id} is incomplete")
            if sequence.sampling is not None:
                token_ids = context[0, 0, :, 0, 0].astype(int).tolist()
                sampled.append(next_token(token_ids, sequence.sampling.seed))
                if sequence.sampling.logprobs is not None:
                    count = sequence.sampling.logprobs
                    logprobs[sequence.request_id] = fake_logprobs(sampled[-1], count)
            if (wanted := sequence.pooled) is not None:
                states = fake_states(sequence.token_ids)
                pooled[sequence.request_id] = states[wanted.start : wanted.stop]
            if (targets := sequence.prompt_targets) is not None:
                prompt_logprobs[sequence.request_id] = [
                    fake_logprobs(token_id, targets.num_top) for token_id in targets.token_ids
                ]
        self._sampled = sampled
        return StepResult(sampled, logprobs, prompt_logprobs, pooled)

    def _write(self, batch: Batch, watch: LayerProgress | None) -> None:
        """Layer by layer, as models do."""
        for layer, memory in enumerate(self._kv.memory):
            self.before_layer(layer)
            for sequence in batch.sequences:
                row = sequence.previous_row
                new_ids = sequence.token_ids if row is None else [self._sampled[row]]
                places = np.arange(sequence.start, sequence.start + len(new_ids))
                blocks = np.array(sequence.block_ids)[places // self._block_size]
                new = np.array(new_ids, np.float32)[:, None, None]
                memory[:, blocks, places % self._block_size] = new
            if watch is not None and layer + 1 in watch.num_layers:
                watch.tell(layer + 1)


class FixedCosts(StepCosts):
    """Learns nothing."""

    def __init__(self, rate: PrefillRate) -> None:
        super().__init__(rate.num_tokens_per_step)
        self._rate = rate

    def rate(self, num_decodes: int = 0) -> PrefillRate:
        return self._rate


class FakeEngine(EngineCore):
    """An Engine with deterministic tokens (`expected_tokens`), paged "KV", leases and a pace."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 16,
        head_dim: int = 2,
        max_model_len: int = 512,
        seconds_per_token: float = 0.0,
        scheduler: SchedulerConfig | None = None,
        eos_token_ids: Sequence[int] = (),
        grammars: GrammarCompiler | None = None,
        pooling: Pooling | None = None,
        generates: bool = True,
        prefill_rate: PrefillRate | None = None,
        shared: bool = False,
        model_folder: str | None = None,
        fingerprint: str = "fake",
        naming: str | None = None,
        arithmetic: str = "",
        quantization: str = "",
    ) -> None:
        """`prefill_rate` is told instead of what is measured.

        Blocks are named as by the model `naming`; one that is not that of the `fingerprint` is a fault. With `shared`, others on this host can read the KV, as that of an engine in its own process.
        """
        config = (scheduler or SchedulerConfig()).on("cpu")
        layout = KvLayout.uniform(block_size, 2, num_kv_heads=1, head_dim=head_dim, dtype="float32")
        info = EngineInfo(
            fingerprint, layout, num_blocks, max_model_len, config.max_num_seqs, pooling, generates
        )
        info = replace(info, arithmetic=arithmetic, quantization=quantization)
        named = replace(info, model_fingerprint=naming or fingerprint)
        info = replace(info, model_folder=model_folder, canary=named.hasher().canary())
        descriptor = open_memory() if shared else None
        kv = FakeKv(layout, num_blocks, descriptor)
        if descriptor is not None:
            os.close(descriptor)
        self.scheduler = Scheduler(
            named,
            config,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=eos_token_ids,
            costs=FixedCosts(prefill_rate) if prefill_rate is not None else None,
        )
        self.runner = FakeRunner(kv, seconds_per_token)
        super().__init__(info, self.scheduler, self.runner, kv, grammars)
        self.num_submitted = 0
        """Requests that it was ever asked for, also in the middle of a step."""

    def submit(self, request: EngineRequest) -> None:
        self.num_submitted += 1
        super().submit(request)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds; equals `info.num_blocks` when nothing leaks."""
        return self.load().num_free_blocks
