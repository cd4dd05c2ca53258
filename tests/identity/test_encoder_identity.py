"""Encoders: the vectors of transformers, and the same bits in every batch and on every path."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import torch

from pagemesh.config import CacheConfig, ModelConfig, SchedulerConfig, ServerConfig
from pagemesh.core.engine import StepOutput
from pagemesh.core.request import EngineRequest
from pagemesh.engine_process.client import EngineProcess
from pagemesh.engine_process.pipe import EngineSettings
from pagemesh.llm import LLM
from pagemesh.models.loader import LoadedModel, load_model
from tests.identity.checkpoints import VOCAB_SIZE
from tests.identity.encoder_checkpoints import (
    RECIPES,
    EncoderRecipe,
    make_encoder,
    reference_vector,
)
from tests.identity.engines import Peer
from tests.identity.test_embedding_identity import Vectors, embed
from tests.support.products import drawn
from tests.support.waiting import wait_until

TOLERANCES: Final = {"float32": 2e-6, "bfloat16": 0.05}
"""Of the largest component, or of 1 where that is less. float32: sums that are rounded, over three layers. bfloat16:
8 bits of each activation, of weights that were spread widely."""


class Subject(NamedTuple):
    """An encoder, requests for it and their vectors."""

    folder: Path
    model: LoadedModel
    requests: list[EngineRequest]
    reference: dict[str, torch.Tensor]
    """What transformers' hidden states are pooled to, in float64, so that no processor's rounding is in them."""
    expected: Vectors
    """Each request alone in an engine."""


def make_prompts() -> list[tuple[int, ...]]:
    drawn = random.Random(4)
    lengths = (1, 2, 15, 16, 17, 33, 64, 70, 90)
    return [tuple(drawn.choices(range(5, VOCAB_SIZE), k=length)) for length in lengths]


ENCODERS = [(name, dtype) for name in RECIPES for dtype in TOLERANCES]


@pytest.fixture(scope="module", params=drawn("encoders", ENCODERS, [], 9), ids=" ".join)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    name, dtype = request.param
    recipe: EncoderRecipe = RECIPES[name]
    folder = tmp_path_factory.mktemp("encoder")
    reference = make_encoder(folder, recipe).double()
    model = load_model(ModelConfig(str(folder), dtype=dtype))
    requests = [EngineRequest(f"{i}", p, embed=True) for i, p in enumerate(make_prompts())]
    vectors = {
        r.request_id: reference_vector(reference, recipe, r.prompt_token_ids) for r in requests
    }
    expected: Vectors = {}
    for each in requests:
        expected |= embed(Peer(model, max_num_batched_tokens=96), [each])
    return Subject(folder, model, requests, vectors, expected)


def as_tensor(vector: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(vector), dtype=torch.float32)


def test_vectors_are_those_of_transformers(subject: Subject) -> None:
    dtype = str(subject.model.dtype).removeprefix("torch.")
    for request_id, vector in subject.reference.items():
        found = as_tensor(subject.expected[request_id]).double()
        size = max(1.0, vector.abs().max().item())
        torch.testing.assert_close(found, vector, rtol=0, atol=TOLERANCES[dtype] * size)


@pytest.mark.product
@pytest.mark.parametrize("num_budget_tokens", [90, 101, 512])
def test_vectors_are_the_same_bits_in_every_batch(subject: Subject, num_budget_tokens: int) -> None:
    requests = list(subject.requests)
    num_threads = torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            random.Random(number).shuffle(requests)
            peer = Peer(subject.model, max_num_batched_tokens=num_budget_tokens)
            assert embed(peer, requests) == subject.expected
    finally:
        torch.set_num_threads(num_threads)


@pytest.mark.product
@pytest.mark.parametrize(("block_size", "num_blocks"), [(8, 12), (32, 3), (32, 64)])
def test_vectors_are_the_same_bits_for_every_block_size_and_in_a_small_cache(
    subject: Subject, block_size: int, num_blocks: int
) -> None:
    peer = Peer(subject.model, block_size=block_size, num_blocks=num_blocks)
    # Twice, so that the second round finds the first one's blocks, and must not use what is in them.
    assert embed(peer, subject.requests, subject.requests) == subject.expected
    assert {end.num_cached_tokens for end in peer.ends.values()} == {0}


def test_vectors_of_an_llm_are_the_same_bits(subject: Subject) -> None:
    dtype = str(subject.model.dtype).removeprefix("torch.")
    # The budget is less than a prompt: an encoder takes what its longest prompt needs.
    with LLM(subject.folder, dtype=dtype, max_num_seqs=4, max_num_batched_tokens=16) as llm:
        outputs = llm.embed([list(r.prompt_token_ids) for r in subject.requests], use_tqdm=False)
    for request, output in zip(subject.requests, outputs, strict=True):
        vector = torch.tensor(output.outputs.embedding)
        assert torch.equal(vector, as_tensor(subject.expected[request.request_id]))


async def test_vectors_of_an_engine_in_its_own_process_are_the_same_bits(tmp_path: Path) -> None:
    make_encoder(tmp_path, RECIPES["BERT mean"])
    model = load_model(ModelConfig(str(tmp_path)))
    requests = [EngineRequest(f"{i}", p, embed=True) for i, p in enumerate(make_prompts())]
    expected = embed(Peer(model), requests)
    settings = EngineSettings(
        ModelConfig(str(tmp_path), threads=1),
        CacheConfig(),
        SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=96),
        ServerConfig(),
        "decode",
    )
    engine = await asyncio.to_thread(EngineProcess(settings).connect)
    steps: list[StepOutput] = []
    engine.start(steps.append)
    try:
        for request in requests:
            engine.submit(request)
        await wait_until(lambda: len(vectors(steps)) == len(requests), "all vectors", 30.0)
    finally:
        await asyncio.to_thread(engine.stop)
    assert vectors(steps) == expected


def vectors(steps: list[StepOutput]) -> Vectors:
    outputs = [output for step in steps for output in step.outputs]
    return {o.request_id: o.embedding for o in outputs if o.embedding is not None}
