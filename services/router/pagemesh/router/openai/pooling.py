"""What requests have in common that are answered with vectors, or with what is made of them."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pydantic
from pydantic import Field

from pagemesh.router.embedding.vectors import EmbedOptions, Input, unpack
from pagemesh.router.models import ModelService
from pagemesh.router.openai.fields import MAX_INT32, check_fields
from pagemesh.router.openai.lax_types import LAX, Truth
from pagemesh.router.openai.truncation import Truncation
from pagemesh.router.openai.unsupported import OF_POOLING, refuse_unsupported


class PoolingFields(pydantic.BaseModel):
    """Null means the same as absent, and fields that nobody knows are ignored."""

    model_config = pydantic.ConfigDict(strict=True, allow_inf_nan=False)

    model: str | None = None
    priority: Annotated[int, Field(ge=-MAX_INT32, le=MAX_INT32), LAX] | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_INT32), LAX] | None = None
    truncation_side: Literal["left", "right"] | None = None
    use_activation: Truth | None = None
    add_special_tokens: Truth | None = None

    @property
    def options(self) -> EmbedOptions:
        """How prompts are embedded: vLLM's activation of a vector is its length of 1."""
        return EmbedOptions(self.priority or 0, self.cache_salt or "", self.use_activation)

    def truncation(self, max_model_len: int) -> Truncation | None:
        """How prompts are cut."""
        asked, side = self.truncate_prompt_tokens, self.truncation_side
        return Truncation.of_pooling(asked, side, max_model_len)

    async def encode(
        self, service: ModelService, inputs: Sequence[Input], field: str
    ) -> Sequence[Input]:
        """The inputs as they are to be embedded; they stay what they are where nothing is said about tokens."""
        adds_special = self.add_special_tokens is not False
        if self.truncate_prompt_tokens is None and adds_special:
            return inputs
        max_model_len = service.workers.require_max_model_len()
        truncation = self.truncation(max_model_len)
        return [
            await service.model.encode_prompt(
                each, field, max_model_len, add_special_tokens=adds_special, truncation=truncation
            )
            if isinstance(each, str)
            else (truncation.cut(each) if truncation else each)
            for each in inputs
        ]


class VectorFields(PoolingFields):
    """A request whose answer has vectors."""

    encoding_format: Literal["float", "base64"] | None = None
    embed_dtype: Literal["float32", "float16", "bfloat16"] | None = None
    endianness: Literal["native", "little", "big"] | None = None

    def written(self, vector: bytes) -> str | tuple[float, ...]:
        """A vector of float32 as the answer has it: as numbers, or as the bytes that were asked for."""
        if self.encoding_format != "base64":
            return unpack(vector)
        order = sys.byteorder if self.endianness in (None, "native") else self.endianness
        sign = "<" if order == "little" else ">"
        values = np.frombuffer(vector, "<f4")
        if self.embed_dtype == "bfloat16":
            bits = values.view("<u4")
            # The upper half, rounded to the nearest, of two to the even one.
            packed = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(f"{sign}u2")
        else:
            with np.errstate(over="ignore"):
                packed = values.astype(f"{sign}f{2 if self.embed_dtype == 'float16' else 4}")
        return base64.b64encode(packed.tobytes()).decode()


Fields = TypeVar("Fields", bound=PoolingFields)


def read_pooling(kind: type[Fields], raw: dict[str, Any]) -> Fields:
    """Check a body; raises InvalidRequestError or UnsupportedError naming the field."""
    refuse_unsupported(raw, neutral_values=OF_POOLING)
    return check_fields(kind, raw)


def prompt_usage(num_tokens: int) -> dict[str, int]:
    """The `usage` object of an answer for which nothing is generated."""
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
