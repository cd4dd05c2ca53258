"""Libraries that take a second each to import and that few tests need; imported when they are first used.

Each process of `make test` imports every file of tests, and runs a part of them. So instead of `import openai`:

    from tests.support.late_imports import openai
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = [
    "anthropic",
    "awq_converters",
    "compressed_quantization",
    "compressors",
    "fastapi",
    "finegrained_fp8",
    "langchain_openai",
    "litellm",
    "masking_utils",
    "mxfp4",
    "openai",
    "openapi_checks",
    "schemathesis",
    "transformers",
]


class _Late(ModuleType):
    """In the place of a module, until something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        # pytest asks whatever a file has for what classes, tests and mocks have.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


if TYPE_CHECKING:
    import anthropic
    import fastapi
    import langchain_openai
    import litellm
    import openai
    import schemathesis
    import transformers
    from compressed_tensors import compressors
    from compressed_tensors import quantization as compressed_quantization
    from compressed_tensors.entrypoints.convert.converters import autoawq as awq_converters
    from schemathesis.specs.openapi import checks as openapi_checks
    from transformers import masking_utils
    from transformers.integrations import finegrained_fp8, mxfp4
else:
    anthropic = _Late("anthropic")
    awq_converters = _Late("compressed_tensors.entrypoints.convert.converters.autoawq")
    compressed_quantization = _Late("compressed_tensors.quantization")
    compressors = _Late("compressed_tensors.compressors")
    fastapi = _Late("fastapi")
    finegrained_fp8 = _Late("transformers.integrations.finegrained_fp8")
    langchain_openai = _Late("langchain_openai")
    litellm = _Late("litellm")
    openai = _Late("openai")
    schemathesis = _Late("schemathesis")
    openapi_checks = _Late("schemathesis.specs.openapi.checks")
    transformers = _Late("transformers")
    masking_utils = _Late("transformers.masking_utils")
    mxfp4 = _Late("transformers.integrations.mxfp4")
