"""One worker of a deployment: the memory of its plan, and the times of its steps, measured or estimated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from pagemesh.errors import ConfigError
from pagemesh.models.spec import DecoderSpec
from pagemesh.plan.roofline import Device, Rates, estimate, work_of
from pagemesh.plan.settings import GpuConfig
from pagemesh.sim.model import MAX_KV_TOKENS, MeshModel, WorkerModel, read_model
from pagemesh.sizing.plan import GIB, ITEM_BYTES, Hardware, MemoryPlan, StepLimits

ALLOWANCE_GIB: Final = 8
"""Of the host's memory, of a worker on a GPU beside its model: two processes with torch, CUDA's libraries, kernels as
they are compiled, 72 MiB of buffers for weights and KV, and requests and KV on their way. An allowance, not a
measurement: on a CPU both processes take half a GiB (memory.json)."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model on one worker's hardware, as its memory plan has it."""

    model: str
    architecture: str
    spec: DecoderSpec | None
    """None of a model that transformers runs."""
    num_parameters: int
    dtype: str
    hardware: Hardware
    limits: StepLimits
    memory: MemoryPlan
    file_bytes: int
    """Of the model's tensors in its files."""

    packed: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the parameters that stay quantised, as of `sizing.weights`."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What the simulator knows of workers, and where it is from."""

    mesh: MeshModel
    num_devices: int
    kv_cache_gib: float | None
    """For --kv-cache-memory, which a CPU's worker must be told."""
    rates_source: str
    is_estimate: bool


def make_worker(subject: Subject, gpu: GpuConfig, rates_path: str | None) -> Worker:
    """Raises ConfigError where there is too little to make one of."""
    memory = subject.memory
    if memory.step is not None:
        raise ConfigError(
            f"--model is {subject.model!r}, which generates no tokens; deployments are planned of models that do"
        )
    num_tokens, gib = memory.num_tokens, None
    if subject.hardware.kind == "cpu":
        # In whole hundredths, as it is written into a file.
        gib = math.floor(memory.cache_bytes / GIB * 100) / 100
        num_tokens = int(gib * GIB) // memory.layout.num_bytes * memory.layout.block_size
    if num_tokens < memory.max_model_len:
        raise ConfigError(
            f"a worker has room for the KV of {num_tokens:,} tokens, but one request has up to"
            f" {memory.max_model_len:,}: give more memory, or a smaller --max-model-len"
        )
    size = subject.hardware.tensor_parallel_size
    worker = WorkerModel(
        kv_tokens=min(num_tokens, MAX_KV_TOKENS),
        max_num_seqs=subject.limits.num_seqs,
        max_num_batched_tokens=subject.limits.num_tokens,
        max_model_len=memory.max_model_len,
    )
    if rates_path is None:
        rates = _estimated(subject, gpu)
        mesh = MeshModel(decode=replace(worker, prefill=rates.prefill, decode=rates.decode))
        source = _source(gpu, size)
    else:
        mesh = _with_times(read_model(rates_path), worker)
        source = f"measured, of {rates_path}"
    mesh = replace(
        mesh,
        block_size=memory.layout.block_size,
        num_layers=memory.layout.num_layers,
        kv_bytes_per_token=memory.kv_bytes_per_token * size,
    )
    return Worker(mesh, size, gib, source, is_estimate=rates_path is None)


def _with_times(measured: MeshModel, worker: WorkerModel) -> MeshModel:
    """Of what was measured only the times: how large a worker is stands in its plan."""
    prefill = measured.prefill
    return replace(
        measured,
        decode=replace(worker, prefill=measured.decode.prefill, decode=measured.decode.decode),
        prefill=prefill and replace(worker, prefill=prefill.prefill, decode=prefill.decode),
        measured={},
    )


def _estimated(subject: Subject, gpu: GpuConfig) -> Rates:
    if subject.hardware.kind == "cpu":
        raise ConfigError("--rates is None, but must be given for a CPU: estimates are for GPUs")
    if subject.spec is None:
        raise ConfigError(
            f"--rates is None, but must be given for {subject.architecture}, which transformers runs"
        )
    if subject.dtype == "float32" and gpu.gpu_tflops is None:
        raise ConfigError(
            "--gpu-tflops is None, but must be given, or --rates, for a model in float32: data sheets' figures"
            " are of 16 bits"
        )
    tflops, bandwidth = gpu.tflops, gpu.bandwidth
    if tflops is None or bandwidth is None:
        raise ConfigError(
            "--rates is None, but must be given, or --gpu, or --gpu-tflops and --gpu-bandwidth"
        )
    size = subject.hardware.tensor_parallel_size
    reached = size * gpu.gpu_efficiency
    kv_bytes = subject.memory.kv_bytes_per_token * size
    return estimate(
        work_of(subject.spec, ITEM_BYTES[subject.dtype], kv_bytes, subject.packed),
        Device(tflops * 1e12 * reached, bandwidth * 1e9 * reached),
    )


def _source(gpu: GpuConfig, size: int) -> str:
    sheet = gpu.data_sheet
    source = f" ({sheet.source})" if sheet else ""
    together = f", times {size} without what they say to each other" if size > 1 else ""
    return f"{gpu.gpu_efficiency:.0%} of {gpu.tflops:g} TFLOP/s and {gpu.bandwidth:g} GB/s{source}{together}"


class HostMemory(NamedTuple):
    """Of one worker, in whole GiB."""

    request: int
    """What it holds at some time, and nobody can take from it."""
    limit: int
    """With the model's files, which count as the worker's as long as the system keeps them."""


def host_memory(model_bytes: int, *, held_first: bool) -> HostMemory:
    """What a worker on a GPU takes of its host's memory, see docs/memory.md.

    `held_first` is a model that the host holds as a whole before the GPU gets it. The others' files pass through; the system drops what it kept of them when memory is wanted.
    """
    model = math.ceil(model_bytes / GIB)
    limit = ALLOWANCE_GIB + model
    return HostMemory(limit if held_first else ALLOWANCE_GIB, limit)
