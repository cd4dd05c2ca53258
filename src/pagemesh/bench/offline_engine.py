"""The model of `pagemesh bench throughput` and `latency`: `LLM`, made from settings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig

if TYPE_CHECKING:
    from pagemesh.llm import LLM


def load_llm(
    model: ModelConfig, hardware: HardwareConfig, cache: CacheConfig, scheduler: SchedulerConfig
) -> LLM:
    """A model with these settings. Raises ConfigError for what cannot be."""
    # Imported here: it loads torch.
    from pagemesh.llm import LLM

    keywords = _keywords(model) | _keywords(hardware) | _keywords(cache) | _keywords(scheduler)
    return LLM(keywords.pop("model"), **keywords)


def _keywords(area: Any) -> dict[str, Any]:
    """Settings by name, with those of the areas in it beside them."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(area):
        value = getattr(area, field.name)
        found |= _keywords(value) if dataclasses.is_dataclass(value) else {field.name: value}
    return found
