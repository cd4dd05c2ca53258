"""`--max-model-len auto`, for commands whose settings have a number there: the longest context whose KV fits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pagemesh.cli.arguments import parse
from pagemesh.cli.vllm.flags import UNSET_VALUES
from pagemesh.config import WorkerConfig

if TYPE_CHECKING:
    from pagemesh.cli.settings import UpConfig
    from pagemesh.cli.up.memory import Fit

FLAG: Final = "--max-model-len"


def mesh_arguments(given: Sequence[str]) -> list[str]:
    """Those of `pagemesh up`, with a number; ConfigError when the models do not fit."""
    return _with_number(given, _mesh)


def worker_arguments(given: Sequence[str]) -> list[str]:
    """Those of `pagemesh prefill` and `decode`, with a number; ConfigError when the model does not fit."""
    return _with_number(given, _mesh_of_worker)


def _with_number(given: Sequence[str], as_mesh: Callable[[Sequence[str]], UpConfig]) -> list[str]:
    others, is_automatic = _split(given)
    if not is_automatic:
        return others
    fit = _fit(as_mesh(others))
    if fit.max_model_len is None:
        return others
    print(f"pagemesh: {context_text(fit)}", file=sys.stderr, flush=True)
    return [*others, FLAG, str(fit.max_model_len)]


def _split(given: Sequence[str]) -> tuple[list[str], bool]:
    """The arguments without the flag where its value is automatic, and whether it is."""
    others: list[str] = []
    left = list(given)
    is_automatic = False
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if name.replace("_", "-") != FLAG:
            others.append(word)
        elif (value if equals else left[0] if left else "") in UNSET_VALUES[FLAG]:
            is_automatic = True
            del left[: 0 if equals else 1]
        else:
            others.append(word)
    return others, is_automatic


def _mesh(arguments: Sequence[str]) -> UpConfig:
    # Here, because workers seldom need the settings of a mesh, and all would load them.
    from pagemesh.cli.settings import UpConfig

    return parse(UpConfig, "pagemesh", "", arguments)


def _mesh_of_worker(arguments: Sequence[str]) -> UpConfig:
    """A mesh of this worker."""
    from pagemesh.cli.settings import UpConfig

    worker = parse(WorkerConfig, "pagemesh", "", arguments)
    return UpConfig(
        model=(worker.model.model,),
        dtype=worker.model.dtype,
        model_impl=worker.model.model_impl,
        quantization=worker.model.quantization,
        hub=worker.model.hub,
        prefill=0,
        decode=1,
        cache=worker.cache,
        scheduler=worker.scheduler,
        hardware=worker.hardware,
    )


def _fit(config: UpConfig) -> Fit:
    # Here, because few commands need them, and all would wait for them.
    from pagemesh.cli.up.memory import fit_machine
    from pagemesh.cli.up.sharing import gpus_for

    gpus = gpus_for(config.hardware)
    if not gpus:
        # What every worker takes, and no share of what is free.
        cache = replace(config.cache, kv_cache_memory=config.cache.cpu_kv_memory)
        config = replace(config, cache=cache)
    return fit_machine(config, gpus)


def context_text(fit: Fit) -> str:
    """What there is to say of a context that had to be shortened."""
    return (
        f"{fit.max_model_len} tokens are the longest context whose KV fits, of the {fit.own_max_model_len} that the"
        f" model has ({FLAG})"
    )
