"""The engine: computes batch after batch. Knows nothing of RPCs, roles and text.

`interface` is what services see; `remote` starts a process and talks to it, `process` is its other end.
Neither loads torch: in that process `loading.load_engine` does, which builds a real engine.
`LLM` has an engine in the process that uses it (`offline`), with text in and text out.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from pagemesh.engine.library_caches import BOUNDED_CACHES
from pagemesh.engine.thread_policy import SPINNING_BRIEFLY

if TYPE_CHECKING:
    from pagemesh.engine.offline.llm import LLM
    from pagemesh.engine.offline.outputs import (
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        RequestOutput,
    )
    from pagemesh.engine.offline.params import SamplingParams
    from pagemesh.sampling.structured.outputs import StructuredOutputs

__all__ = [
    "LLM",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
]

_HOMES = {
    "LLM": "pagemesh.engine.offline.llm",
    "CompletionOutput": "pagemesh.engine.offline.outputs",
    "EmbeddingOutput": "pagemesh.engine.offline.outputs",
    "EmbeddingRequestOutput": "pagemesh.engine.offline.outputs",
    "RequestOutput": "pagemesh.engine.offline.outputs",
    "SamplingParams": "pagemesh.engine.offline.params",
    "StructuredOutputs": "pagemesh.sampling.structured.outputs",
}


def __getattr__(name: str) -> object:
    """Load a public name on first use: processes that import `interface` alone must stay without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # What the user has set counts; and a torch that is loaded already keeps what it has found.
    for variable, value in {**SPINNING_BRIEFLY, **BOUNDED_CACHES}.items():
        os.environ.setdefault(variable, value)
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
