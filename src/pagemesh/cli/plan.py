"""`pagemesh plan`: what a model would take of given hardware, and how many requests would fit beside it.

With traffic, how many workers it takes: see `pagemesh.plan`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pagemesh.cli.arguments import parse
from pagemesh.cli.settings import PlanConfig
from pagemesh.cli.vllm.adapt import adapt
from pagemesh.errors import ConfigError
from pagemesh.models import choices
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization import methods
from pagemesh.models.registry import find_architecture
from pagemesh.models.resolve import resolve_model_path
from pagemesh.models.spec import DecoderSpec
from pagemesh.sizing import weights
from pagemesh.sizing.machine import machine_memory
from pagemesh.sizing.plan import (
    GIB,
    ITEM_BYTES,
    Hardware,
    MemoryPlan,
    StepLimits,
    make_outline_plan,
    make_plan,
    num_parameters,
    num_step_tokens,
    size_text,
)

PROG: Final = "pagemesh plan"

_OF_FILE: Final = ("--model", "--gguf-file", "--load-format", "--quantization")
"""Flags with a value each."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A plan, and what it was made for."""

    config: PlanConfig
    architecture: str
    num_parameters: int
    dtype: str
    hardware: Hardware
    limits: StepLimits
    plan: MemoryPlan
    file_bytes: int
    """Of the model's tensors in its files."""

    packed: weights.PackedWeights
    """What is quantised, by the file or while it is loaded."""

    spec: DecoderSpec | None = None
    """None of a model that transformers runs."""


def own_arguments(given: Sequence[str]) -> list[str]:
    """What `PlanConfig` is made from: flags that say what a model's file is are read as `pagemesh serve` reads them.
    Says on stderr what there is to know about them. Raises UsageError and ConfigError."""
    of_file: list[str] = []
    others: list[str] = []
    left = list(given)
    while left:
        word = left.pop(0)
        name, equals, _ = word.partition("=")
        if name.replace("_", "-") not in _OF_FILE:
            others.append(word)
            continue
        of_file.append(word)
        of_file += left[: 0 if equals else 1]
        del left[: 0 if equals else 1]
    adapted = adapt(PlanConfig, of_file)
    arguments = [*adapted.arguments, *others]
    if adapted.load_format != "auto":
        config = parse(PlanConfig, PROG, "", arguments)
        folder = resolve_model_path(config.model, config.hub, need="config")
        methods.check_load_format(folder, adapted.load_format)
    adapted.tell(PROG)
    return arguments


def run(config: PlanConfig) -> None:
    """Print the plan; ConfigError when the model or the hardware cannot be."""
    answer = plan_model(config)
    if not config.deployment.is_wanted:
        print(json.dumps(as_json(answer), indent=2) if config.json else as_table(answer))
        return
    # Imported here, as the simulator takes a while that sums of memory need not wait for.
    from pagemesh.cli.plan_deployment import run_deployment

    run_deployment(answer)


def plan_model(config: PlanConfig) -> Answer:
    """Read config.json and do the sums."""
    folder = resolve_model_path(config.model, config.hub, need="config")
    settings = ConfigJson.read(folder / "config.json")
    architecture = find_architecture(settings)
    if architecture is None:
        return _plan_with_transformers(config, folder, settings)
    spec = architecture.make_spec(settings)
    dtype = choices.choose_dtype(config.dtype, settings, architecture.dtypes)
    max_model_len = choices.choose_max_model_len(config.max_model_len, spec, folder)
    hardware = _hardware(config)
    scheduler = config.scheduler.on(hardware.kind)
    limits = StepLimits(
        num_tokens=num_step_tokens(
            scheduler.max_num_batched_tokens, max_model_len, causal=spec.causal
        ),
        num_seqs=scheduler.max_num_seqs,
        max_model_len=max_model_len,
    )
    kv_dtype = choices.choose_kv_dtype(
        config.kv_cache_dtype,
        dtype,
        hardware.kind,
        causal=spec.causal,
        capability=config.gpu.capability,
    )
    packed = weights.packed_weights(
        folder, settings, architecture, spec, config.quantization, hardware.kind
    )
    plan = make_plan(spec, dtype, config.block_size, limits, hardware, kv_dtype, packed.num_bytes)
    return Answer(
        config=config,
        architecture=spec.architecture,
        num_parameters=num_parameters(spec),
        dtype=dtype,
        hardware=hardware,
        limits=limits,
        plan=plan,
        file_bytes=weights.file_bytes(folder, settings, architecture, spec, dtype),
        spec=spec,
        packed=packed,
    )


def _plan_with_transformers(config: PlanConfig, folder: Path, settings: ConfigJson) -> Answer:
    choices.require_transformers(settings)
    chosen = methods.choose_quantization(settings, config.quantization)
    # Imported here because it takes seconds, and models of pagemesh's own do without.
    from pagemesh.models.transformers_backend.read import outline

    dtype = choices.choose_dtype(config.dtype, settings, ITEM_BYTES)
    model = outline(folder, config.max_model_len)
    hardware = _hardware(config)
    scheduler = config.scheduler.on(hardware.kind)
    limits = StepLimits(
        scheduler.max_num_batched_tokens, scheduler.max_num_seqs, model.max_model_len
    )
    kv_dtype = choices.choose_kv_dtype(
        config.kv_cache_dtype, dtype, hardware.kind, capability=config.gpu.capability
    )
    plan = make_outline_plan(model, dtype, config.block_size, limits, hardware, kv_dtype)
    return Answer(
        config=config,
        architecture=model.architecture,
        num_parameters=model.num_parameters,
        dtype=dtype,
        hardware=hardware,
        limits=limits,
        plan=plan,
        # By config.json alone nobody knows the names of modules, by which settings quantise them.
        file_bytes=weights.stored_bytes(folder) or plan.weight_bytes,
        # While it is loaded such a model is as large as a dense one, whatever it keeps of that.
        packed=weights.PackedWeights(chosen.name if chosen else None),
    )


def as_json(answer: Answer) -> dict[str, Any]:
    """All numbers, in bytes and tokens."""
    plan = answer.plan
    return {
        "model": answer.config.model,
        "architecture": answer.architecture,
        "num_parameters": answer.num_parameters,
        "dtype": answer.dtype,
        "quantization": answer.packed.name,
        "left_dense": answer.packed.left_dense,
        "kv_cache_dtype": plan.layout.dtype,
        "device": answer.hardware.kind,
        "tensor_parallel_size": answer.hardware.tensor_parallel_size,
        "max_model_len": plan.max_model_len,
        "per_device": {
            "usable_bytes": plan.usable_bytes,
            "weight_bytes": plan.weight_bytes,
            "table_bytes": plan.table_bytes,
            "runtime_bytes": plan.runtime_bytes,
            "activation_bytes": plan.activation_bytes,
            "kv_bytes": plan.cache_bytes,
            "kv_bytes_per_token": plan.kv_bytes_per_token,
            "num_blocks": plan.num_blocks,
        },
        "num_tokens": plan.num_tokens,
        "max_concurrency": plan.max_concurrency,
    }


def as_table(answer: Answer) -> str:
    """For people."""
    plan, limits = answer.plan, answer.limits
    size = answer.hardware.tensor_parallel_size
    device = "GPU" if answer.hardware.kind == "cuda" else "CPU"
    where = f"{size} {device}s, each with" if size > 1 else f"a {device} with"
    rows = [
        (
            "weights",
            size_text(plan.weight_bytes),
            f"{_count(answer.num_parameters)} parameters, {_types(answer)}",
        ),
        ("tables", size_text(plan.table_bytes), "of positions, and what is kept twice"),
        ("runtime", size_text(plan.runtime_bytes), ""),
        (
            "activations",
            size_text(plan.activation_bytes),
            f"of a step of {limits.num_tokens} tokens, {limits.num_seqs} requests",
        ),
        (
            "KV cache",
            size_text(plan.cache_bytes),
            f"{plan.num_tokens} tokens, {plan.layout.dtype}",
        ),
    ]
    lines = [
        f"{answer.config.model} ({answer.architecture}) on {where} {size_text(plan.usable_bytes)}",
        "",
    ]
    lines += [f"  {name:<12} {amount:>12}   {note}".rstrip() for name, amount, note in rows]
    lines.append("")
    if answer.packed.left_dense:
        lines.append(f"Not quantised: {', '.join(answer.packed.left_dense)}.")
    per_token = f"{plan.kv_bytes_per_token / 1024:g} KiB"
    if plan.step is None:
        lines.append(f"KV of a token takes {per_token}.")
    else:
        lines.append(f"KV of a token takes {per_token}: of one layer at a time, for one step.")
    return "\n".join([*lines, verdict(plan)])


def _types(answer: Answer) -> str:
    if answer.packed.name is None:
        return answer.dtype
    if answer.spec is None:
        return f"{answer.dtype}, quantised by {answer.packed.name}, but counted as dense"
    return f"{answer.dtype}, quantised by {answer.packed.name}"


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"


def verdict(plan: MemoryPlan) -> str:
    """How many requests fit, or that none does."""
    if plan.max_concurrency and plan.step is not None:
        return (
            f"Prompts of up to {plan.max_model_len} tokens are computed whole,"
            f" {plan.step.num_tokens} tokens in a step."
        )
    if plan.max_concurrency:
        return (
            f"{plan.max_concurrency} requests of {plan.max_model_len} tokens fit at once, or"
            f" {plan.num_tokens} tokens in {plan.num_blocks} blocks of {plan.layout.block_size}."
        )
    if plan.kv_bytes <= 0:
        return f"The model does not fit: {size_text(-plan.kv_bytes)} are missing before the first KV block."
    return (
        f"Not even one request of {plan.max_model_len} tokens fits; --max-model-len may be at most"
        f" {plan.num_tokens}."
    )


def _hardware(config: PlanConfig) -> Hardware:
    size = config.tensor_parallel_size
    if config.memory_of_gpu is not None:
        usable = int(config.memory_of_gpu * config.gpu_memory_utilization * GIB)
        return Hardware("cuda", usable, size)
    if config.memory is not None:
        return Hardware("cpu", int(config.memory * GIB), size)
    here = machine_memory()
    if here is None:
        raise ConfigError("this machine does not say how much memory it has: give --memory")
    return Hardware("cpu", here.total, size)
