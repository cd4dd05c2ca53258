"""`pagemesh serve MODEL`: a whole mesh for what vLLM's users type, with the roles that suit this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pagemesh.cli.arguments import UsageError, parse
from pagemesh.cli.longest_context import context_text
from pagemesh.cli.settings import UpConfig
from pagemesh.cli.up.memory import fit_machine
from pagemesh.cli.up.sharing import visible_gpus
from pagemesh.cli.vllm.adapt import Adapted, adapt
from pagemesh.cli.vllm.environment import add_environment
from pagemesh.cli.vllm.variants import make_variant
from pagemesh.config.environment import HOST_VARIABLE
from pagemesh.models.quantization.methods import check_load_format
from pagemesh.models.resolve import resolve_model_path

PROG: Final = "pagemesh serve"

_UTILIZATION: Final = 0.98
"""Of a GPU's memory; beyond, whatever else comes to the GPU ends in a failure."""

_CPUS: Final = Path("/sys/devices/system/cpu")

_PREFILL_SHARE: Final = 4
"""One device in so many prefills, at least one: prompts are computed many tokens at a time, answers one by one."""


def own_arguments(given: Sequence[str]) -> list[str]:
    """What `UpConfig` is made from; says on stderr what there is to know about it. Raises UsageError."""
    adapted = adapt(UpConfig, given)
    if "-h" in adapted.arguments or "--help" in adapted.arguments:
        return ["--help"]
    add_environment(adapted, os.environ)
    if (host := os.environ.get(HOST_VARIABLE)) and "--host" not in adapted.flags:
        adapted.arguments += ["--host", host]
    if adapted.changes:
        _change_model(adapted)
    if adapted.load_format != "auto":
        _check_load_format(adapted)
    gpus = _gpus(adapted.arguments)
    if "--prefill" not in adapted.flags:
        devices = len(gpus) or num_sockets()
        # What is wrong with --model is found later.
        num_models = len(adapted.models) or 1
        arguments, note = roles(
            devices, num_models, fixed="--decode" in adapted.flags, on_gpus=bool(gpus)
        )
        adapted.arguments += arguments
        adapted.notes.append(note)
    _add_memory(adapted, gpus)
    adapted.tell(PROG)
    return adapted.arguments


def _change_model(adapted: Adapted) -> None:
    """Put a folder in the model's place that has what it should have instead; ConfigError when there can be none."""
    config = parse(UpConfig, PROG, "", adapted.arguments)
    models = config.served.models
    if len(models) > 1:
        raise UsageError(
            f"--tokenizer, --hf-overrides and what else changes a model is for one, but --model has {len(models)}"
        )
    model = models[0]
    folder = make_variant(model.source, adapted.changes, config.hub)
    # The name stays; the revision is that of what was downloaded.
    adapted.take_out("--revision")
    adapted.serve_instead(f"{model.name}={folder}")
    adapted.notes.append(f"{model.source} is served with these changes from {folder}")


def _check_load_format(adapted: Adapted) -> None:
    """ConfigError where a model is not in the format that --load-format names."""
    config = parse(UpConfig, PROG, "", adapted.arguments)
    for model in config.served.models:
        folder = resolve_model_path(model.source, config.hub, need="config")
        check_load_format(folder, adapted.load_format)


def _add_memory(adapted: Adapted, gpus: Sequence[str]) -> None:
    """What suits this machine where nothing is said: on CPUs a share of what is free for KV, and the longest
    context that fits. ConfigError when the models do not fit, but would with other roles."""
    config = parse(UpConfig, PROG, "", adapted.arguments)
    utilization = config.hardware.gpu_memory_utilization
    if gpus and utilization > _UTILIZATION:
        adapted.notes.append(
            f"--gpu-memory-utilization {utilization:g} leaves no room for other programs on the GPU, nor for what its"
            " driver takes beside them: one of them may end for want of memory"
        )
    fit = fit_machine(config, gpus)
    if fit.kv_cache_memory is not None and config.cache.kv_cache_memory is None:
        adapted.arguments += ["--kv-cache-memory", f"{fit.kv_cache_memory:g}"]
        adapted.notes.append(
            f"{fit.kv_cache_memory:g} GiB of memory for each worker's KV, of what is free (--kv-cache-memory)"
        )
    if fit.max_model_len is not None and config.max_model_len is None:
        adapted.arguments += ["--max-model-len", str(fit.max_model_len)]
        adapted.notes.append(context_text(fit))


def roles(
    num_devices: int, num_models: int, *, fixed: bool, on_gpus: bool = False
) -> tuple[list[str], str]:
    """Flags for the workers of each model, and a sentence about them; `fixed` when --decode was given.

    Devices are GPUs, or processors in sockets of their own. A worker that only prefills computes beside the
    others, on a GPU with the weights once more, so it comes with a device of its own.
    """
    each = num_devices // num_models
    if each < 2:
        cost = "the weights are in memory twice" if on_gpus else "KV is copied between two workers"
        return ["--prefill", "0"], (
            "one worker of a model prefills and decodes; with --prefill 1 streams do not wait for the prompts of"
            f" others, and {cost}"
        )
    prefill = max(1, each // _PREFILL_SHARE)
    arguments = ["--prefill", str(prefill)]
    if not fixed:
        arguments += ["--decode", str(each - prefill)]
    return arguments, (
        f"of {num_devices} devices, {prefill} for each model computes prompts, and the others answers; with"
        " --prefill 0 each does both, and long prompts make streams wait"
    )


def _gpus(arguments: Sequence[str]) -> tuple[str, ...]:
    device = arguments[arguments.index("--device") + 1] if "--device" in arguments else "auto"
    return () if device == "cpu" else visible_gpus()


def num_sockets(cpus: Path = _CPUS) -> int:
    """Processors in sockets of their own that this process may run on; 1 where the system does not say."""
    if not hasattr(os, "sched_getaffinity"):
        return 1
    found = set()
    for cpu in os.sched_getaffinity(0):
        try:
            found.add((cpus / f"cpu{cpu}/topology/physical_package_id").read_text().strip())
        except OSError:
            return 1
    return max(1, len(found))
