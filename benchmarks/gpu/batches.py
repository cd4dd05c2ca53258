"""Batches for a runner, without a scheduler."""

from __future__ import annotations

from gpu.model import Subject
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import UNKNOWN_TOKEN, Batch, ScheduledSequence

GREEDY = SamplingParams(temperature=0.0)
TOP_P = SamplingParams(temperature=1.0, top_p=0.95, seed=7)
FLAT_TOP_P = SamplingParams(temperature=20.0, top_p=0.95, seed=7)
"""So hot that nearly all tokens are candidates: the dearest case."""


def decodes(
    subject: Subject,
    num_rows: int,
    context: int,
    sampling: SamplingParams,
    *,
    first_block: int = 0,
    unknown: bool = False,
) -> list[ScheduledSequence]:
    """Sequences that compute the last of `context` tokens; of `unknown`, the step before sampled it."""
    blocks_each = -(-context // subject.block_size)
    vocab_size = subject.spec.vocab_size
    return [
        ScheduledSequence(
            request_id=f"decode-{index}",
            token_ids=(UNKNOWN_TOKEN,) if unknown else ((index * 7919) % vocab_size,),
            start=context - 1,
            block_ids=[
                (first_block + index * blocks_each + place) % subject.num_blocks
                for place in range(blocks_each)
            ],
            sampling=sampling,
            previous_row=index if unknown else None,
        )
        for index in range(num_rows)
    ]


def prompt(
    subject: Subject, num_tokens: int, sampling: SamplingParams, *, first_block: int = 0
) -> ScheduledSequence:
    """A whole prompt, from which a token is sampled."""
    num_blocks = -(-num_tokens // subject.block_size)
    return ScheduledSequence(
        request_id="prompt",
        token_ids=[(index * 7919) % subject.spec.vocab_size for index in range(num_tokens)],
        start=0,
        block_ids=[(first_block + place) % subject.num_blocks for place in range(num_blocks)],
        sampling=sampling,
    )


def decode_batch(
    subject: Subject,
    num_rows: int,
    context: int,
    sampling: SamplingParams = GREEDY,
    *,
    unknown: bool = False,
) -> Batch:
    """Decodes alone."""
    return Batch(decodes(subject, num_rows, context, sampling, unknown=unknown))
