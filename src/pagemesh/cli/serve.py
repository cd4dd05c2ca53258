"""`pagemesh serve MODEL`: a whole mesh for what vLLM's users type, with the roles that suit this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pagemesh.cli.settings import UpConfig
from pagemesh.cli.up.gpus import visible_gpus
from pagemesh.cli.vllm.adapt import Adapted, adapt
from pagemesh.cli.vllm.environment import add_environment

PROG: Final = "pagemesh serve"

_CPUS: Final = Path("/sys/devices/system/cpu")

_PREFILL_SHARE: Final = 4
"""One device in so many prefills, at least one: prompts are computed many tokens at a time, answers one by one."""


def own_arguments(given: Sequence[str]) -> list[str]:
    """What `UpConfig` is made from; says on stderr what there is to know about it. Raises UsageError."""
    adapted = adapt(UpConfig, given)
    if "-h" in adapted.arguments or "--help" in adapted.arguments:
        return ["--help"]
    add_environment(adapted, os.environ)
    if "--prefill" not in adapted.flags:
        devices = _num_devices(adapted.arguments)
        arguments, note = roles(devices, _num_models(adapted), fixed="--decode" in adapted.flags)
        adapted.arguments += arguments
        adapted.notes.append(note)
    for note in adapted.notes:
        print(f"{PROG}: {note}", file=sys.stderr, flush=True)
    return adapted.arguments


def roles(num_devices: int, num_models: int, *, fixed: bool) -> tuple[list[str], str]:
    """Flags for the workers of each model, and a sentence about them; `fixed` when --decode was given.

    Devices are GPUs, or processors in sockets of their own. A worker that only prefills holds the weights once more,
    so it comes with a device of its own.
    """
    each = num_devices // num_models
    if each < 2:
        return ["--prefill", "0"], (
            "one worker of a model prefills and decodes, so its weights are in memory once; with --prefill 1 streams"
            " do not wait for the prompts of others, and the weights are in memory twice"
        )
    prefill = max(1, each // _PREFILL_SHARE)
    arguments = ["--prefill", str(prefill)]
    if not fixed:
        arguments += ["--decode", str(each - prefill)]
    return arguments, (
        f"of {num_devices} devices, {prefill} for each model computes prompts, and the others answers; with"
        " --prefill 0 each does both, and long prompts make streams wait"
    )


def _num_devices(arguments: Sequence[str]) -> int:
    device = arguments[arguments.index("--device") + 1] if "--device" in arguments else "auto"
    gpus = () if device == "cpu" else visible_gpus()
    return len(gpus) or num_sockets()


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


def _num_models(adapted: Adapted) -> int:
    """Values of --model; what is wrong with them is found later."""
    if "--model" not in adapted.flags:
        return 1
    behind = adapted.arguments[adapted.arguments.index("--model") + 1 :]
    count = next((n for n, each in enumerate(behind) if each.startswith("-")), len(behind))
    return max(1, count)
