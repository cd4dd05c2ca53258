"""A planned deployment for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from fractions import Fraction
from typing import Any

from pagemesh.plan.deployment import Deployment
from pagemesh.plan.search import Size
from pagemesh.plan.settings import DeploymentConfig
from pagemesh.sizing.plan import size_text

_COLUMNS = (("prefill:decode", 22), ("decode", 7), ("prefill", 8), ("devices", 8), ("good", 8))
_TIMES = (("TTFT", 8), ("TPOT", 8), ("E2E", 8))


def as_text(deployment: Deployment, config: DeploymentConfig) -> str:
    """A table of what each ratio needs, and what follows."""
    share = f"{config.goodput_share:g}"
    traffic = deployment.traffic
    head = "".join(
        name.ljust(w) if not i else name.rjust(w) for i, (name, w) in enumerate(_COLUMNS)
    )
    head += "".join(name.rjust(width) for name, width in _TIMES)
    lines = [
        f"{traffic.request_rate:.2f} requests/s of {traffic.prompt_tokens:.0f} tokens and"
        f" {traffic.output_tokens:.0f} to generate, {share} of them within {' '.join(config.goodput)} ms",
        f"rates: {deployment.worker.rates_source}",
        "",
        head,
        *_rows(deployment),
        "",
        f"TTFT, TPOT and E2E in ms, to which {share} of the requests keep; {config.policy}, {len(deployment.trials)} deployments"
        f" were simulated with {deployment.num_requests} requests.",
        "",
        *_answer(deployment),
    ]
    return "\n".join([*lines, *(f"note: {note}" for note in deployment.notes)])


def as_json(deployment: Deployment, config: DeploymentConfig) -> dict[str, Any]:
    """All figures, in seconds, bytes and shares."""
    binding = deployment.binding
    return {
        "settings": asdict(config),
        "rates": {
            "source": deployment.worker.rates_source,
            "is_estimate": deployment.worker.is_estimate,
            "model": asdict(deployment.worker.mesh),
        },
        "traffic": deployment.traffic._asdict(),
        "alternatives": [
            {
                "prefill_per_decode": each.ratio,
                "decode": each.size and each.size.decode,
                "prefill": each.size and each.size.prefill,
                "devices": each.size and each.size.total * deployment.worker.num_devices,
                "more_than": None if each.size else each.most,
            }
            for each in deployment.found
        ],
        "trials": [
            asdict(trial) | {"size": trial.size._asdict()} for trial in deployment.trials.values()
        ],
        "alone": asdict(deployment.alone) | {"size": deployment.alone.size._asdict()},
        "least": deployment.least._asdict(),
        "spare": deployment.spare._asdict(),
        "decode": deployment.size.decode,
        "prefill": deployment.size.prefill,
        "devices": deployment.size.total * deployment.worker.num_devices,
        "binding": binding
        and {
            "decode": binding.fewer.decode,
            "prefill": binding.fewer.prefill,
            "misses": binding.misses,
            "resource": binding.resource,
            "good_shares": binding.good_shares,
        },
        "surroundings": asdict(deployment.surroundings),
        "notes": list(deployment.notes),
        "seconds": deployment.seconds,
    }


def sentence_of_limit(deployment: Deployment) -> str:
    """What keeps fewer workers from being enough."""
    binding = deployment.binding
    if binding is None:
        return "Fewer workers there are not." if deployment.least.decode == 1 else ""
    terms = ", ".join(f"{count} miss {name}" for name, count in binding.misses.items())
    resource = binding.resource
    helps = f"what would help most is more {resource}" if resource else "nothing alone would help"
    return f"With {binding.fewer}, of {deployment.num_requests} requests {terms}; {helps}."


def _rows(deployment: Deployment) -> Iterator[str]:
    """One for each size: several ratios may come to the same."""
    ratios: dict[tuple[Size | None, int], list[float]] = {}
    for found in deployment.found:
        ratios.setdefault((found.size, 0 if found.size else found.most), []).append(found.ratio)
    for (size, most), equal in ratios.items():
        name = ", ".join(map(_ratio, equal)).ljust(_COLUMNS[0][1])
        yield _row(deployment, name, size) if size else f"{name}  more than {most} workers"


def _row(deployment: Deployment, name: str, size: Size) -> str:
    trial = deployment.trials[size]
    cells = [size.decode, size.prefill, size.total * deployment.worker.num_devices]
    texts = [*map(str, cells), f"{trial.good_share:.1%}"]
    row = name + "".join(text.rjust(w) for text, (_, w) in zip(texts, _COLUMNS[1:], strict=True))
    times = (_ms(trial.ttft, 0), _ms(trial.tpot, 1), _ms(trial.e2el, 0))
    return row + "".join(time.rjust(w) for time, (_, w) in zip(times, _TIMES, strict=True))


def _ratio(ratio: float) -> str:
    if not ratio:
        return "no prefill"
    fraction = Fraction(ratio).limit_denominator(100)
    return f"{fraction.numerator}:{fraction.denominator}"


def _answer(deployment: Deployment) -> list[str]:
    around = deployment.surroundings
    rows = [
        ("workers", str(deployment.size), _with_spare(deployment.least, deployment.spare)),
        ("devices", str(deployment.size.total * deployment.worker.num_devices), ""),
        ("routers", str(around.routers), f"{around.router_cores:.2f} cores busy, and spare"),
        ("gateways", str(around.gateways), f"{around.gateway_cores:.2f} cores busy, and spare"),
        ("kvstores", str(around.kvstores), f"{around.lookups_per_second:.1f} lookups/s"),
        ("index", size_text(around.index_bytes), _index_note(deployment)),
        ("model", size_text(around.model_bytes), "of files, to be kept on a volume"),
    ]
    lines = [f"  {name:<9} {amount:>22}   {note}".rstrip() for name, amount, note in rows]
    limit = sentence_of_limit(deployment)
    return [*lines, "", *([limit] if limit else [])]


def _with_spare(least: Size, spare: Size) -> str:
    return f"{least} are enough" + (f"; {spare} may fail" if spare.total else "; none is spare")


def _index_note(deployment: Deployment) -> str:
    around = deployment.surroundings
    return f"{around.index_blocks} blocks; {size_text(around.valkey_bytes)} in a Valkey"


def _ms(seconds: float | None, num_digits: int) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.{num_digits}f}"
