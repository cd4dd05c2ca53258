"""Attention of a whole prompt, whose time is that of its products."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from gpu.compiling import compile_ahead
from gpu.limits import Limits
from gpu.probe import Probe
from pagemesh.kernels.kv_scales import FP8
from pagemesh.kernels.paged_attention import AttentionShape, LayerAttention, PagedSequence
from pagemesh.kernels.paged_attention.cuda import CudaPagedAttention
from pagemesh.kernels.paged_attention.cuda_kernels import Tiling, tiling_of
from pagemesh.kernels.target import target_of

BLOCK = 16
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
"""Llama 3 8B's."""


def measure_prompt(probe: Probe, limits: Limits, num_tokens: int) -> None:
    """Ours with several tiles, and torch's."""
    prompt = Prompt(probe, num_tokens)
    torch_ms = 0.0
    with probe.case("prompt by torch"):
        torch_ms = prompt.time("torch", prompt.theirs)
    _measure(probe, limits, prompt, prompt.tilings(), f"{torch_ms * 1e3:.1f}")


def measure_segments(probe: Probe, limits: Limits, num_tokens: int, lengths: Sequence[int]) -> None:
    """Ours with today's tiles and segments of other lengths."""
    prompt = Prompt(probe, num_tokens)
    today = prompt.tilings()[0]
    tilings = [today, *(today._replace(segment_keys=length) for length in lengths)]
    _measure(probe, limits, prompt, list(dict.fromkeys(tilings)), "")


def _measure(
    probe: Probe, limits: Limits, prompt: Prompt, tilings: Sequence[Tiling], theirs: str
) -> None:
    probe.note(compile_ahead([prompt.ours(each) for each in tilings]))
    for tiling in tilings:
        if not probe.has_time():
            return
        name = _words(tiling)
        with probe.case(f"prompt, {name}"):
            taken_ms = prompt.time(name, prompt.ours(tiling))
            _, share = limits.shares(0.0, prompt.num_flops, taken_ms)
            probe.row(
                f"prompt of {prompt.num_tokens}: {prompt.num_flops / taken_ms / 1e9:.0f} TFLOP/s",
                f"{taken_ms * 1e3:.1f}",
                f"{share:.2f}",
                theirs,
                name,
            )


class Prompt:
    """One sequence without a past, in scattered blocks."""

    def __init__(self, probe: Probe, num_tokens: int) -> None:
        num_blocks = -(-num_tokens // BLOCK)
        kv_shape = (2, num_blocks, BLOCK, KV_HEADS, HEAD_DIM)
        self.num_flops = 4.0 * HEADS * HEAD_DIM * num_tokens * (num_tokens + 1) / 2
        self._probe = probe
        self.num_tokens = num_tokens
        self._kv = random_values(kv_shape, torch.bfloat16, probe.device)
        self._query = random_values((num_tokens, HEADS, HEAD_DIM), torch.bfloat16, probe.device)
        self._shape = AttentionShape(HEADS, KV_HEADS, HEAD_DIM, num_blocks, BLOCK, torch.bfloat16)
        self._sequence = PagedSequence(num_tokens, num_tokens, torch.randperm(num_blocks).tolist())

    def tilings(self) -> list[Tiling]:
        """Today's, other depths, and longer segments."""
        today = tiling_of(self._shape, target_of(self._probe.device))
        many = today.many
        changed = [today._replace(many=many._replace(num_stages=stages)) for stages in (2, 4)]
        changed.append(today._replace(segment_keys=2048))
        if self._probe.toy:
            return [today]
        return [today, *(tiling for tiling in changed if tiling != today)]

    def ours(self, tiling: Tiling) -> Callable[[], object]:
        """Our kernel."""
        plan = CudaPagedAttention(self._shape, self._probe.device, tiling).plan([self._sequence])
        features = LayerAttention(HEAD_DIM**-0.5)
        return lambda: plan.attend(self._query, self._kv, features)

    def theirs(self) -> object:
        """torch's, over the blocks as they lie."""
        heads = self._query.unsqueeze(0).transpose(1, 2)
        keys, values = (
            half.view(1, -1, KV_HEADS, HEAD_DIM)[:, : self.num_tokens].transpose(1, 2)
            for half in self._kv
        )
        return functional.scaled_dot_product_attention(
            heads, keys, values, is_causal=True, enable_gqa=True
        )

    def time(self, name: str, work: Callable[[], object]) -> float:
        """Milliseconds, and the rate as a figure."""
        graph = self._probe.clock.capture(work)
        samples = self._probe.clock.replays_ms(graph, self._probe.num_rounds)
        rates = [self.num_flops / each / 1e9 for each in samples]
        self._probe.figure(f"prompt of {self.num_tokens}, {name}", "TFLOP/s", rates)
        return statistics.median(samples)


def _words(tiling: Tiling) -> str:
    many = tiling.many
    return (
        f"{many.num_rows}x{tiling.num_keys} w{many.num_warps} s{many.num_stages}"
        f" p{many.programs_per_multiprocessor} seg{tiling.segment_keys}"
    )


def random_values(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Normally distributed numbers; those of eight bits are rounded from others, in pieces."""
    if dtype != FP8:
        return torch.empty(tuple(shape), dtype=dtype, device=device).normal_()
    values = torch.empty(tuple(shape), dtype=dtype, device=device)
    flat = values.view(torch.uint8).view(-1)
    for begin in range(0, len(flat), 1 << 28):
        part = flat[begin : begin + (1 << 28)]
        wide = torch.empty(len(part), dtype=torch.bfloat16, device=device).normal_()
        part.copy_(wide.to(FP8).view(torch.uint8))
    return values
