"""The Python client: text and tokens from a mesh over gRPC, typed.

    from pagemesh.client import Client

    with Client("127.0.0.1:8000") as client:
        for chunk in client.generate("Once upon a time", max_tokens=32):
            print(chunk.text, end="", flush=True)

`AsyncClient` has the same methods for asyncio. Failures raise the exceptions of `pagemesh.errors`.
"""

from pagemesh.client.aio import AsyncClient
from pagemesh.client.requests import EmbedSettings, Settings, TextSettings, TokenizeSettings
from pagemesh.client.results import (
    Chunk,
    Completion,
    Embeddings,
    ModelInfo,
    RankedDocument,
    Ranking,
    Scores,
    ToolCall,
    Usage,
)
from pagemesh.client.sync import Client
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.structured.outputs import StructuredOutputs

__all__ = [
    "AsyncClient",
    "Chunk",
    "Client",
    "Completion",
    "EmbedSettings",
    "Embeddings",
    "ModelInfo",
    "RankedDocument",
    "Ranking",
    "Scores",
    "Settings",
    "StructuredOutputs",
    "TextSettings",
    "TokenLogprobs",
    "TokenizeSettings",
    "ToolCall",
    "Usage",
]
