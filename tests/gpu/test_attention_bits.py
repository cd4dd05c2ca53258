"""On a GPU a query's attention has the same bits as a decode, in any chunk, in any batch and in a graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch

from pagemesh.kernels.kv_scales import FP8, KvScales
from pagemesh.kernels.paged_attention import (
    AttentionShape,
    Capacity,
    LayerAttention,
    PagedSequence,
    make_paged_attention,
)
from pagemesh.kernels.paged_attention.reference import ReferencePagedAttention
from pagemesh.kernels.target import arrival_counters

DEVICE = torch.device("cuda")
# Segments have 512 keys.
LENGTH = 2100
POSITIONS = (0, 63, 511, 512, 1023, 1024, 1500, 2099)
CHUNKS = ((0, 17), (500, 530), (1000, 1700))
BLOCK_SIZE = 16
LONG = 8800
LONG_POSITIONS = (8191, 8192, 8703, 8704, 8799)
ERRORS = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-5}


class Model(NamedTuple):
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    slopes: bool = False
    dtype: torch.dtype = torch.bfloat16
    kv_dtype: torch.dtype | None = None


MODELS = {
    "Llama 3 8B": Model(32, 8, 128),
    "Llama 3 8B, float16": Model(32, 8, 128, dtype=torch.float16),
    "Llama 3 8B, float32": Model(32, 8, 128, dtype=torch.float32),
    "Llama 3 8B, KV in FP8": Model(32, 8, 128, kv_dtype=FP8),
    "GPT-OSS": Model(64, 8, 64, window=128, sinks=True),
    "Gemma 2 27B": Model(32, 16, 128, window=1000, soft_cap=50.0),
    "Gemma 2 9B": Model(16, 8, 256, soft_cap=50.0),
    "Phi 3 mini": Model(32, 32, 96, window=600),
    "MPT 30B": Model(64, 64, 112, slopes=True),
    "Falcon 7B": Model(71, 1, 64),
}
models = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


class Layer(NamedTuple):
    shape: AttentionShape
    features: LayerAttention
    kv: torch.Tensor
    query: torch.Tensor  # of a whole prompt
    block_ids: list[int]

    def attend(self, *spans: tuple[int, int]) -> list[torch.Tensor]:
        """Each span of the prompt's queries, computed in one batch."""
        sequences = [PagedSequence(end - begin, end, self.block_ids) for begin, end in spans]
        plan = make_paged_attention(self.shape, DEVICE).plan(sequences)
        query = torch.cat([self.query[begin:end] for begin, end in spans])
        output = plan.attend(query, self.kv, self.features)
        return list(torch.split(output, [end - begin for begin, end in spans]))


def make_layer(model: Model, length: int = LENGTH) -> Layer:
    num_blocks = length // BLOCK_SIZE + 170
    shape = AttentionShape(
        model.num_heads,
        model.num_kv_heads,
        model.head_dim,
        num_blocks,
        BLOCK_SIZE,
        model.dtype,
        kv_dtype=model.kv_dtype,
    )
    heads = torch.arange(1.0, model.num_heads + 1, device=DEVICE)
    kv_heads = torch.arange(1.0, model.num_kv_heads + 1, device=DEVICE)
    features = LayerAttention(
        model.head_dim**-0.5,
        model.window,
        model.soft_cap,
        sinks=heads / model.num_heads if model.sinks else None,
        alibi_slopes=2 ** (-8 * heads / model.num_heads) if model.slopes else None,
        kv_scales=KvScales(1 / kv_heads, 2 / kv_heads) if model.kv_dtype == FP8 else None,
    )
    size = (2, num_blocks, BLOCK_SIZE, model.num_kv_heads, model.head_dim)
    kv = torch.randn(size, device=DEVICE).to(shape.stored)
    query = torch.randn(length, model.num_heads, model.head_dim, device=DEVICE).to(model.dtype)
    block_ids = torch.randperm(num_blocks)[: -(-length // BLOCK_SIZE)].tolist()
    return Layer(shape, features, kv, query, block_ids)


@pytest.fixture(autouse=True)
def one_seed() -> Iterator[None]:
    torch.manual_seed(11)
    # As the engine does; graphs of either kind, alive together, share a state of torch's.
    with torch.inference_mode():
        yield
    torch.cuda.empty_cache()


@models
def test_decodes_and_chunks_are_rows_of_the_prompt(model: Model) -> None:
    layer = make_layer(model)
    (whole,) = layer.attend((0, LENGTH))
    decodes = [(position, position + 1) for position in POSITIONS]
    # Alone many programs share a decode; among hundreds hardly any is shared.
    batches = [[span] for span in (*decodes, *CHUNKS)] + [[*decodes, *CHUNKS], decodes * 50]
    for spans in batches:
        for span, output in zip(spans, layer.attend(*spans), strict=True):
            assert torch.equal(output, whole[slice(*span)]), (span, len(spans))


@pytest.mark.parametrize("name", ["Llama 3 8B", "Gemma 2 9B"])
def test_a_program_may_leave_the_sums_of_several_segments(name: str) -> None:
    layer = make_layer(MODELS[name], LONG)
    (whole,) = layer.attend((0, LONG))
    decodes = [(position, position + 1) for position in LONG_POSITIONS]
    for spans in ([decodes[-1]], decodes, [(8000, 8500)], [*decodes * 20, (900, 1200)]):
        for span, output in zip(spans, layer.attend(*spans), strict=True):
            assert torch.equal(output, whole[slice(*span)]), (span, len(spans))


def test_whoever_arrives_last_gives_the_same_bits() -> None:
    layer = make_layer(MODELS["Llama 3 8B"])
    attention = make_paged_attention(layer.shape, DEVICE)
    for spans in ([(LENGTH - 1, LENGTH)], [(0, LENGTH)], [(p, p + 1) for p in POSITIONS]):
        sequences = [PagedSequence(end - begin, end, layer.block_ids) for begin, end in spans]
        plan = attention.plan(sequences)
        query = torch.cat([layer.query[begin:end] for begin, end in spans])
        expected = plan.attend(query, layer.kv, layer.features)
        outputs = [plan.attend(query, layer.kv, layer.features) for _ in range(100)]
        assert all(torch.equal(output, expected) for output in outputs)
    assert not arrival_counters(DEVICE).any()


@models
def test_a_replayed_graph_gives_rows_of_the_prompt(model: Model) -> None:
    layer = make_layer(model)
    (whole,) = layer.attend((0, LENGTH))
    num_rows = len(POSITIONS) + 2
    attention = make_paged_attention(layer.shape, DEVICE)
    plan = attention.make_reusable(
        Capacity(num_rows, num_rows * len(layer.block_ids)), [layer.features]
    )
    query = torch.zeros(num_rows, *layer.query.shape[1:], dtype=model.dtype, device=DEVICE)
    plan.attend(query, layer.kv, layer.features)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = plan.attend(query, layer.kv, layer.features)
    for positions in (POSITIONS, POSITIONS[:1], POSITIONS[::-1], ()):
        plan.refill([PagedSequence(1, p + 1, layer.block_ids) for p in positions])
        query[: len(positions)] = layer.query[list(positions)]
        graph.replay()
        assert torch.equal(output[: len(positions)], whole[list(positions)])
        assert int(output[len(positions) :].count_nonzero()) == 0


@models
def test_decodes_agree_with_the_reference(model: Model) -> None:
    layer = make_layer(model)
    sequences = [PagedSequence(1, position + 1, layer.block_ids) for position in POSITIONS]
    query = layer.query[list(POSITIONS)]
    reference = ReferencePagedAttention(layer.shape).plan(sequences)
    expected = reference.attend(query, layer.kv, layer.features).float()
    plan = make_paged_attention(layer.shape, DEVICE).plan(sequences)
    output = plan.attend(query, layer.kv, layer.features).float()
    tolerance = ERRORS[model.dtype] * float(expected.abs().max())
    torch.testing.assert_close(output, expected, rtol=0, atol=tolerance)
