"""What storing keys and values takes, and the plain definition: torch turns, and there is one assignment per token."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from pagemesh.kernels.kv_scales import FP8, MAX_FP8, KvScales, check_scales, row_size, to_int8


class Turn(NamedTuple):
    """How queries and keys are turned: by rotary position embedding (Su et al. 2021,
    https://arxiv.org/abs/2104.09864), in float32, and rounded once."""

    factors: torch.Tensor
    """complex64 [T, D / 2], each for the pair of dimensions 2 i and 2 i + 1."""

    norm_weight: torch.Tensor | None = None
    """Of the heads' RMSNorm, float32 [query and kv heads, D]; without one they are turned as they are."""

    norm_eps: float = 0.0


class KvWriter(Protocol):
    """Stores the keys and values of a step's tokens in their block slots."""

    def slot_mapping(self, slots: torch.Tensor, num_slots: int) -> torch.Tensor:
        """What `write` is told of slots, int64 [T], in layers of `num_slots`; once per step.

        A slot is block id * block_size + offset in the block. No two tokens may share one.
        """
        ...

    def write(
        self,
        layer_kv: torch.Tensor,
        heads: torch.Tensor,
        slot_mapping: torch.Tensor,
        scales: KvScales | None = None,
        turn: Turn | None = None,
    ) -> None:
        """Store the last heads of [T, query heads + 2 · kv heads, D], which are keys and then values, in a
        layer's [2, blocks, block_size, kv heads, D], or D + 4 in int8 (see `to_int8`). Where there is a turn, queries
        and keys are turned before, in place. Each token's heads lie densely.

        In a layer of FP8 what is stored is the quotient by the head's scale, at most ±448; what is not a
        number stays none. Nothing is ever written but slots of the layer: on a CPU other slots raise
        IndexError; on a GPU, which cannot raise, their tokens are left out, as the padding of a captured
        step is, whose slots are -1.

        Raises ValueError for other shapes, types and strides.
        """
        ...


def check_write(
    layer_kv: torch.Tensor,
    heads: torch.Tensor,
    slot_mapping: torch.Tensor,
    scales: KvScales | None,
    turn: Turn | None,
) -> None:
    """Raise ValueError unless the tokens' heads fit the layer and the turn."""
    stored = layer_kv.dtype
    is_plain = heads.dtype == stored and scales is None
    if (
        layer_kv.ndim != 5
        or heads.ndim != 3
        or heads.shape[1] < 2 * layer_kv.shape[3]
        or (heads.shape[2] if is_plain else row_size(heads.shape[2], stored)) != layer_kv.shape[4]
        or not (is_plain or stored == torch.int8 or scales is not None)
    ):
        raise ValueError(
            f"cannot store {heads.dtype} {list(heads.shape)} in {stored} {list(layer_kv.shape)}"
        )
    if heads.stride()[1:] != (heads.shape[2], 1):
        raise ValueError(
            f"heads {list(heads.shape)} have strides {list(heads.stride())},"
            " but each token's must lie densely"
        )
    if slot_mapping.shape[0] != heads.shape[0]:
        raise ValueError(f"{len(slot_mapping)} slots do not fit heads of {len(heads)} tokens")
    num_kv_heads = layer_kv.shape[3]
    if not is_plain or stored == FP8:
        check_scales(scales, stored, num_kv_heads)
    if turn is not None:
        _check_turn(heads, turn, heads.shape[1] - num_kv_heads)


def _check_turn(heads: torch.Tensor, turn: Turn, num_turned: int) -> None:
    factors, weight, _ = turn
    num_tokens, _, head_dim = heads.shape
    if (
        head_dim % 2
        or factors.shape != (num_tokens, head_dim // 2)
        or factors.dtype != torch.complex64
        or not factors.is_contiguous()
    ):
        raise ValueError(
            f"heads {list(heads.shape)} are not turned by"
            f" factors {list(factors.shape)} of {factors.dtype}"
        )
    if weight is not None and (
        weight.shape != (num_turned, head_dim)
        or weight.dtype != torch.float32
        or not weight.is_contiguous()
    ):
        raise ValueError(
            f"{num_turned} heads of {head_dim} do not fit"
            f" the norm's weight {list(weight.shape)} of {weight.dtype}"
        )


class ReferenceKvWriter:
    """`KvWriter` to compare others with."""

    def slot_mapping(self, slots: torch.Tensor, num_slots: int) -> torch.Tensor:
        return slots

    def write(
        self,
        layer_kv: torch.Tensor,
        heads: torch.Tensor,
        slot_mapping: torch.Tensor,
        scales: KvScales | None = None,
        turn: Turn | None = None,
    ) -> None:
        """See `KvWriter`; leaves out the slots that there are not."""
        check_write(layer_kv, heads, slot_mapping, scales, turn)
        _, num_blocks, block_size, num_kv_heads, _ = layer_kv.shape
        if turn is not None:
            _turn(heads[:, :-num_kv_heads], turn)
        keys_values = heads[:, -2 * num_kv_heads :].view(-1, 2, num_kv_heads, heads.shape[2])
        if scales is not None:
            quotients = keys_values.float() / torch.stack(scales)[None, :, :, None]
            keys_values = quotients.clamp(-MAX_FP8, MAX_FP8).to(FP8)
        elif layer_kv.dtype == torch.int8:
            keys_values = to_int8(keys_values)
        for token, slot in enumerate(slot_mapping.tolist()):
            if 0 <= slot < num_blocks * block_size:
                layer_kv[:, slot // block_size, slot % block_size] = keys_values[token]


def _turn(heads: torch.Tensor, turn: Turn) -> None:
    wide = heads.float()
    if turn.norm_weight is not None:
        mean = wide.square().mean(dim=-1, keepdim=True)
        wide = wide * torch.rsqrt(mean + turn.norm_eps) * turn.norm_weight
    pairs = torch.view_as_complex(wide.reshape(*wide.shape[:2], -1, 2).contiguous())
    heads.copy_(torch.view_as_real(pairs * turn.factors.unsqueeze(1)).flatten(2))
