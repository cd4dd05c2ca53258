"""The smallest deployment for a traffic and an SLO: tried in the simulator, with what stands around it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pagemesh.config import RoutingConfig
from pagemesh.errors import ConfigError
from pagemesh.plan.limits import Binding, what_binds
from pagemesh.plan.search import Found, Size, search
from pagemesh.plan.settings import DeploymentConfig
from pagemesh.plan.surroundings import Surroundings, Traffic, surround, traffic_of
from pagemesh.plan.trial import Goal, OutOfTimeError, Trial, Trials
from pagemesh.plan.worker import Subject, Worker
from pagemesh.sim.sources import Workload, at_rate, load_workload
from pagemesh.sim.trace import Trace
from pagemesh.workload.slo import Slo

_ALONE_RATE = 0.001
"""Requests per second that practically never meet."""

_STEADY = 5.0
"""Times the length of a request that a run should have, to be in a steady state for most of it."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The answer."""

    worker: Worker
    traffic: Traffic
    num_requests: int
    """Of each simulation."""
    alone: Trial
    """The same requests on an idle mesh, one at a time: nothing is quicker."""
    found: tuple[Found, ...]
    """What each ratio needs, as far as there was time."""
    trials: dict[Size, Trial]
    """All that were made."""
    least: Size
    """The fewest workers that are enough; among as many, the fewest prefill workers."""
    spare: Size
    """To be added for workers that fail."""
    binding: Binding | None
    """None where one worker is enough, or there was no time left to ask."""
    surroundings: Surroundings
    notes: tuple[str, ...]
    """Sentences on what to be wary of."""
    seconds: float
    """That the search took."""

    @property
    def size(self) -> Size:
        """Of all workers, with spare ones."""
        return Size(self.least.decode + self.spare.decode, self.least.prefill + self.spare.prefill)


def plan_deployment(subject: Subject, worker: Worker, config: DeploymentConfig) -> Deployment:
    """Search; ConfigError where nothing is enough, saying why."""
    started = time.monotonic()
    workload = load_workload(config.workload)
    trace = at_rate(workload, config.request_rate, num_decode=1)
    traffic = traffic_of(trace)
    trials = Trials(
        trace,
        worker.mesh,
        RoutingConfig(config.policy),
        traffic,
        Goal(config.slo, config.goodput_share),
        seed=config.workload.seed,
        ends_at=started + config.plan_timeout,
    )
    found: list[Found] = []
    binding, is_late = None, False
    try:
        alone = _alone(workload, trials, worker, config)
        for each in search(config.prefill_ratios, trials.passes, config.max_workers):
            found.append(each)
        if (best := _best(found)) is not None:
            binding = what_binds(best, worker.mesh, trials)
    except OutOfTimeError:
        is_late = True
    least = _best(found)
    if least is None:
        raise ConfigError(_why_nothing(config, is_late, trials.made))
    spare = Size(config.spare, config.spare if least.prefill else 0)
    num_workers = least.total + spare.total
    return Deployment(
        worker=worker,
        traffic=traffic,
        num_requests=len(trace),
        alone=alone,
        found=tuple(found),
        trials=trials.made,
        least=least,
        spare=spare,
        binding=binding,
        surroundings=surround(
            traffic,
            num_workers,
            worker.mesh.decode.kv_tokens // worker.mesh.block_size,
            subject.file_bytes,
            config.spare,
        ),
        notes=tuple(_notes(worker, trace, alone, traffic, is_late, config)),
        seconds=time.monotonic() - started,
    )


def _best(found: Sequence[Found]) -> Size | None:
    sizes = [each.size for each in found if each.size is not None]
    return min(sizes, key=lambda size: (size.total, size.prefill), default=None)


def _alone(workload: Workload, trials: Trials, worker: Worker, config: DeploymentConfig) -> Trial:
    """Requests that never meet; ConfigError if even they miss too often."""
    sizes = [Size(1, 0)]
    if worker.mesh.prefill is not None and any(config.prefill_ratios):
        sizes.append(Size(1, 1))
    trace = at_rate(workload, _ALONE_RATE, num_decode=1)
    made = [trials.alone(trace, size) for size in sizes]
    best = max(made, key=lambda trial: trial.good_share)
    if best.is_enough:
        return best
    wanted = f"--goodput-share is {config.goodput_share:g}"
    raise ConfigError(
        f"{wanted}, but of requests that have a mesh to themselves only {best.good_share:.1%} are good, and"
        f" no number of workers makes them quicker: {_reasons(best, config.slo, config.goodput_share)}"
    )


def _reasons(trial: Trial, slo: Slo, share: float) -> str:
    reasons = []
    for name in trial.misses:
        if name in ("ttft", "tpot", "e2el"):
            limit, seconds = getattr(slo, name), getattr(trial, name)
            if seconds > limit:
                reasons.append(
                    f"--goodput {name}:{1000 * limit:g} is less than the {1000 * seconds:.1f} ms that"
                    f" {share:g} of them keep to"
                )
            else:
                reasons.append(f"{trial.misses[name]} miss {name}")
        elif name == "rejected":
            reasons.append(
                f"{trial.misses[name]} do not fit into --max-model-len, or a worker's KV"
            )
        else:
            reasons.append(f"{trial.misses[name]} were {name}")
    return "; ".join(reasons)


def _why_nothing(config: DeploymentConfig, is_late: bool, made: dict[Size, Trial]) -> str:
    if not made:
        return f"--plan-timeout is {config.plan_timeout:g}, in which nothing could be tried"
    last = max(made.values(), key=lambda trial: trial.size.total)
    terms = ", ".join(last.misses)
    tried = f"{last.size} workers are not enough: too many requests miss {terms}"
    if is_late:
        return f"--plan-timeout is {config.plan_timeout:g}, in which nothing was found; {tried}"
    return f"--max-workers is {config.max_workers}, but {tried}"


def _notes(
    worker: Worker,
    trace: Trace,
    alone: Trial,
    traffic: Traffic,
    is_late: bool,
    config: DeploymentConfig,
) -> list[str]:
    notes = []
    if is_late:
        notes.append(
            f"--plan-timeout ({config.plan_timeout:g} s) ended the search: fewer workers may be enough."
        )
    if worker.is_estimate:
        notes.append(
            "The rates are estimated, not measured: measure a worker and plan again with --rates"
            " (docs/sizing.md)."
        )
    if worker.num_devices > 1:
        notes.append(
            f"Workers of {worker.num_devices} devices are not served yet: an engine uses one."
        )
    if worker.mesh.cores is not None:
        notes.append(f"All workers share {worker.mesh.cores:g} cores, as --rates says.")
    seconds, length = len(trace) / traffic.request_rate, alone.e2el or 0.0
    if seconds < _STEADY * length:
        needed = int(_STEADY * length * traffic.request_rate) + 1
        notes.append(
            f"{len(trace)} requests come within {seconds:.0f} s, but one takes up to {length:.0f} s:"
            f" give --num-prompts {needed} for a steady state."
        )
    return notes
