"""All declared metrics, by area; and vLLM's that pagemesh does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Final, NamedTuple

from pagemesh.telemetry.metrics import (
    admission,
    compatibility,
    engine,
    gateway,
    kvstore,
    process,
    requests,
    routing,
    transfer,
)
from pagemesh.telemetry.metrics.specs import Spec


class Area(NamedTuple):
    """Metrics that belong together."""

    about: str
    specs: Sequence[Spec]


def specs_of(module: ModuleType) -> list[Spec]:
    """What a module declares, in its order."""
    return [value for value in vars(module).values() if isinstance(value, Spec)]


def _area(module: ModuleType) -> Area:
    return Area((module.__doc__ or "").strip(), specs_of(module))


AREAS: Final[Mapping[str, Area]] = {
    "Requests and tokens": _area(requests),
    "Engines": _area(engine),
    "KV between workers": _area(transfer),
    "Routing": _area(routing),
    "Admission": _area(admission),
    "Index and membership": _area(kvstore),
    "Certificates": Area(
        "Certificates between the processes, and calls that they forbid.", process.CERTIFICATES
    ),
    "Traces": Area("Spans on their way to a collector.", process.TRACES),
    "Gateway": _area(gateway),
    "Processes": Area(
        "What Prometheus' client library says of each Python process. An engine's own process is not in these.",
        process.PROCESSES,
    ),
    "vLLM's older names": _area(compatibility),
}
"""By titles for people, in the order of their documentation."""

ABSENT: Final = {
    "vllm:prompt_tokens_recomputed": "a prompt's last token is always computed, and never counted as cached",
    "vllm:engine_sleep_state": "engines do not sleep",
    "vllm:lora_requests_info": "there are no adapters",
    "vllm:mm_cache_queries": "there are no images",
    "vllm:mm_cache_hits": "there are no images",
    "vllm:spec_decode_num_drafts": "there is no speculative decoding",
    "vllm:kv_block_lifetime_seconds": "an option of vLLM's that samples single blocks",
    "vllm:corrupted_requests": "an option of vLLM's that looks for NaNs",
}
"""Why vLLM's other metrics are not here."""


def all_specs() -> list[Spec]:
    """Everything that is declared."""
    return [spec for area in AREAS.values() for spec in area.specs]
