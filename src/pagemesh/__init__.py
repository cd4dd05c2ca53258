"""An LLM serving mesh, and its engine without a mesh: `from pagemesh import LLM, SamplingParams`.

The package lies in several folders, of which this is one. What it exports is loaded when it is first used: a process of
a mesh that imports a part of it loads no more than that.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import extend_path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagemesh.llm import LLM, SamplingParams

__path__ = extend_path(__path__, __name__)

__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("pagemesh.llm"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
