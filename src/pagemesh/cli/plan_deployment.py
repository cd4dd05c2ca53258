"""`pagemesh plan` with traffic: plans a deployment, prints it, and writes its values for the chart."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pagemesh.cli.plan import Answer, as_json, as_table, verdict
from pagemesh.cli.settings import PlanConfig
from pagemesh.config.environment import require
from pagemesh.config.served import find_local
from pagemesh.errors import ConfigError
from pagemesh.plan import report
from pagemesh.plan.deployment import plan_deployment
from pagemesh.plan.values import Served, as_values
from pagemesh.plan.worker import Subject, make_worker


def run_deployment(answer: Answer) -> None:
    """Plan and print; ConfigError where something cannot be, before anything is simulated if possible."""
    config = answer.config
    wanted = config.deployment
    if wanted.values is not None:
        _require_writable(wanted.values)
        size = config.tensor_parallel_size
        alone = "1 with --values: a worker uses one GPU yet"
        require(size == 1, "--tensor-parallel-size", size, alone)
    if config.memory_of_gpu is None and config.memory is None:
        raise ConfigError(
            "--memory is None, but must be given for a deployment, or --gpu or --gpu-memory: what a worker has"
        )
    if not answer.plan.max_concurrency:
        raise ConfigError(verdict(answer.plan))
    subject = Subject(
        config.model,
        answer.architecture,
        answer.spec,
        answer.num_parameters,
        answer.dtype,
        answer.hardware,
        answer.limits,
        answer.plan,
        answer.file_bytes,
        answer.packed.num_bytes,
    )
    deployment = plan_deployment(subject, make_worker(subject, config.gpu, wanted.rates), wanted)
    print(f"planned in {deployment.seconds:.1f} s", file=sys.stderr)
    if config.json:
        content = as_json(answer) | {"deployment": report.as_json(deployment, wanted)}
        print(json.dumps(content, indent=2))
    else:
        print(as_table(answer), report.as_text(deployment, wanted), sep="\n\n")
    if wanted.values is not None:
        text = as_values(deployment, wanted, subject, _served(config))
        Path(wanted.values).write_text(text, encoding="utf-8")


def _served(config: PlanConfig) -> Served:
    return Served(
        model=config.model,
        revision=config.hub.revision,
        is_folder=find_local(config.model) is not None,
        dtype=config.dtype,
        kv_cache_dtype=config.kv_cache_dtype,
        max_model_len=config.max_model_len,
        block_size=config.block_size,
        gpu_memory_utilization=config.gpu_memory_utilization,
        quantization=config.quantization,
    )


def _require_writable(path: str) -> None:
    try:
        with Path(path).open("a"):
            pass
    except OSError as error:
        raise ConfigError(f"--values is {path!r}: {error.strerror}") from error
