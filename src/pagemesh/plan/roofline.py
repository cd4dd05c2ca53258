"""What a worker's steps would take at least, from what its GPUs can compute and read. An estimate, no measurement.

Computing and reading are added up, as if they did not overlap, which is on the safe side; that every place of a step
reaches the same share of a data sheet's figures is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from pagemesh.models.spec import DecoderSpec
from pagemesh.sim.model import DecodeModel, PrefillModel


class Work(NamedTuple):
    """What a model has to do, over all of its devices."""

    flops_per_token: float
    """Of a token of a prompt: a multiplication and an addition for each weight that it meets."""
    flops_per_output: float
    """Of a token to be generated: the logits as well."""
    flops_per_pair: float
    """Of a token and one that it attends to: their product, and what is added of the value, in each head."""
    weight_bytes: float
    """Read in every step: all but an embedding table that is not the output, too; every expert of a mixture."""
    kv_bytes_per_token: float
    """Read for each token that a decode attends to."""


class Device(NamedTuple):
    """What all devices of a worker reach together."""

    flops_per_second: float
    bytes_per_second: float


class Rates(NamedTuple):
    """Of one worker."""

    prefill: PrefillModel
    decode: DecodeModel


def work_of(
    spec: DecoderSpec,
    item_bytes: int,
    kv_bytes_per_token: float,
    packed: Mapping[str, int] = MappingProxyType({}),
) -> Work:
    """Of a model with weights of so many bytes each; `packed` are the bytes of parameters that are kept otherwise, as
    of `sizing.weights`."""
    layers = [spec.num_active_weights(index) for index in range(spec.num_layers)]
    head = spec.vocab_size * spec.hidden_size
    attention = spec.attention
    shapes = spec.parameter_shapes().items()
    num_bytes_read = packed.get("lm_head", head * item_bytes) + sum(
        packed.get(name, prod(shape) * item_bytes)
        for name, shape in shapes
        if name.startswith("layers.")
    )
    return Work(
        flops_per_token=2.0 * sum(layers),
        flops_per_output=2.0 * (sum(layers) + head),
        flops_per_pair=4.0 * spec.num_layers * attention.num_heads * attention.head_dim,
        weight_bytes=float(num_bytes_read),
        kv_bytes_per_token=kv_bytes_per_token,
    )


def estimate(work: Work, device: Device) -> Rates:
    """The times of a worker's steps."""
    reading = work.weight_bytes / device.bytes_per_second
    return Rates(
        PrefillModel(
            seconds_per_token=work.flops_per_token / device.flops_per_second,
            seconds_per_pair=work.flops_per_pair / device.flops_per_second,
            seconds_per_step=reading,
        ),
        DecodeModel(
            seconds_per_sequence=work.flops_per_output / device.flops_per_second,
            seconds_per_pair=work.kv_bytes_per_token / device.bytes_per_second,
            seconds_per_step=reading,
        ),
    )
