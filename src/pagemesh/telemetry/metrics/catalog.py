"""All declared metrics, by area; and vLLM's that pagemesh does not have."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Final

from pagemesh.telemetry.metrics import (
    admission,
    compatibility,
    engine,
    gateway,
    kvstore,
    process,
    requests,
    routing,
    security,
    tracing,
    transfer,
)
from pagemesh.telemetry.metrics.specs import Spec

AREAS: Final[Mapping[str, ModuleType]] = {
    "Requests and tokens": requests,
    "Engines": engine,
    "KV between workers": transfer,
    "Routing": routing,
    "Admission": admission,
    "Index and membership": kvstore,
    "Certificates": security,
    "Traces": tracing,
    "Gateway": gateway,
    "Processes": process,
    "vLLM's older names": compatibility,
}
"""Titles for people, and the modules that declare."""

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


def specs_of(area: ModuleType) -> list[Spec]:
    """What an area declares, in its order."""
    return [value for value in vars(area).values() if isinstance(value, Spec)]


def all_specs() -> list[Spec]:
    """Everything that is declared."""
    return [spec for area in AREAS.values() for spec in specs_of(area)]
