"""Embeddings: those of transformers, and the same bits on every path."""

from __future__ import annotations

import json
import queue
import random
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import pytest
import torch

from pagemesh.config import ModelConfig
from pagemesh.core.engine import Pooling, StepOutput
from pagemesh.core.request import EngineRequest
from pagemesh.models.loader import LoadedModel, load_model
from tests.identity.checkpoints import GQA, VOCAB_SIZE, spread
from tests.identity.engines import Peer, next_step, running
from tests.support.late_imports import transformers
from tests.unit.scheduler.builders import FixedWay

Vectors = dict[str, bytes]
Kind = Literal["last", "mean"]

KINDS: Final[tuple[Kind, ...]] = ("last", "mean")
TOLERANCE: Final = 2e-5
"""Between sums of float32 products in different orders, over three layers."""


class Subject(NamedTuple):
    """A model, requests for it and their vectors."""

    model: LoadedModel
    requests: list[EngineRequest]
    reference: dict[str, torch.Tensor]
    """transformers' hidden states [T, hidden]."""
    expected: Vectors
    """Each request alone in an engine without prefix cache, its prompt in one piece."""


def make_prompts() -> list[tuple[int, ...]]:
    drawn = tuple(random.Random(4).choices(range(VOCAB_SIZE), k=300))
    return [drawn[:70], drawn[:40] + drawn[100:160], drawn[200:225], drawn[225:241], drawn[:1]]


@pytest.fixture(scope="module", params=KINDS)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A small Qwen 3 without a head, in a folder that says how to pool."""
    folder = tmp_path_factory.mktemp("embedding")
    settings: dict[str, Any] = GQA | {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 72,
        "intermediate_size": 88,
        "num_hidden_layers": 3,
        "max_position_embeddings": 256,
    }
    config: Any = transformers.Qwen3Config(**settings)
    torch.manual_seed(5)
    make: Any = transformers.AutoModel.from_config
    reference = make(config).eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            spread(name, parameter)
    reference.save_pretrained(folder)
    types = ("Transformer", "Pooling", "Normalize")
    modules = [{"type": f"x.{name}", "path": f"{i}_{name}"} for i, name in enumerate(types)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    mode = {"last": "lasttoken", "mean": "mean_tokens"}[request.param]
    (folder / "1_Pooling/config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    model = load_model(ModelConfig(str(folder)))
    assert model.pooling == Pooling(request.param, normalize=True)
    requests = [EngineRequest(f"{i}", p, embed=True) for i, p in enumerate(make_prompts())]
    with torch.inference_mode():
        states = {
            r.request_id: reference(torch.tensor([r.prompt_token_ids])).last_hidden_state[0]
            for r in requests
        }
    expected: Vectors = {}
    for each in requests:
        expected |= embed(Peer(model, enable_prefix_caching=False), [each])
    return Subject(model, requests, states, expected)


def embed(peer: Peer, *rounds: Sequence[EngineRequest]) -> Vectors:
    """The last round's vectors, its requests computed in one continuous batch."""
    steps: queue.Queue[tuple[Peer, StepOutput]] = queue.Queue()
    with running(peer, listener_queue=steps):
        for requests in rounds:
            peer.forget()
            for request in requests:
                peer.engine.submit(request)
            while len(peer.ends) < len(requests):
                peer.note(next_step(steps, peer)[1])
    vectors = {}
    for request_id, end in peer.ends.items():
        if end.embedding is not None:
            vectors[request_id] = end.embedding
    return vectors


def test_vectors_are_those_of_transformers(subject: Subject) -> None:
    assert subject.model.pooling is not None
    for request_id, states in subject.reference.items():
        pooled = states[-1] if subject.model.pooling.kind == "last" else states.mean(0)
        vector = torch.frombuffer(bytearray(subject.expected[request_id]), dtype=torch.float32)
        reference = torch.nn.functional.normalize(pooled, dim=0)
        torch.testing.assert_close(vector, reference, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("num_budget_tokens", [16, 37, 512])
def test_vectors_are_the_same_bits_in_every_batch_and_chunk(
    subject: Subject, num_budget_tokens: int
) -> None:
    peer = Peer(subject.model, max_num_batched_tokens=num_budget_tokens)
    assert embed(peer, subject.requests) == subject.expected


def test_vectors_are_the_same_bits_behind_a_warm_prefix_cache(subject: Subject) -> None:
    peer = Peer(subject.model, block_size=8)
    assert embed(peer, subject.requests, subject.requests) == subject.expected
    num_cached = {name: end.num_cached_tokens for name, end in peer.ends.items()}
    assert subject.model.pooling is not None
    assert (num_cached["0"] > 0) == (subject.model.pooling.kind == "last")


@pytest.mark.parametrize("swaps", [False, True])
def test_vectors_are_the_same_bits_after_preemption(subject: Subject, swaps: bool) -> None:
    peer = Peer(
        subject.model,
        max_num_batched_tokens=40,
        preempt_at=range(1, 9),
        preemption=FixedWay(swaps),
        num_swap_blocks=64,
    )
    assert embed(peer, subject.requests) == subject.expected
    assert peer.scheduler.load().num_preemptions > 3
