"""The client for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack

import grpc

from pagemesh.client import credentials, requests, results
from pagemesh.client import requests as texts
from pagemesh.client.requests import (
    DEFAULT_TIMEOUT_S,
    EmbedSettings,
    Inputs,
    Settings,
    TextSettings,
    TokenizeSettings,
)
from pagemesh.client.results import Chunk, Completion, Embeddings, ModelInfo, Ranking, Scores
from pagemesh.config import MeshTlsConfig
from pagemesh.rpc.status import from_rpc_error
from pagemesh.v1 import inference_pb2, inference_pb2_grpc

Response = TypeVar("Response")


class AsyncClient:
    """A connection to a mesh for one event loop. Close it, or use it in an `async with` block.

        async with AsyncClient("127.0.0.1:8000") as client:
            answer = await client.complete(messages=[{"role": "user", "content": "Hello!"}])
            print(answer.text)

    Every method raises a `pagemesh.errors.PagemeshError` when the mesh refuses or fails.
    """

    def __init__(
        self, address: str, *, api_key: str | None = None, tls: MeshTlsConfig | None = None
    ) -> None:
        """`address` is host:port of the gateway or of a router; connects on first use.

        The key, where the mesh asks for one, is that of PAGEMESH_API_KEY in the environment when not given.
        `tls` is for a router that speaks TLS: names files of a certificate with the DNS name client.pagemesh.
        """
        self._metadata = credentials.key_metadata(api_key)
        self._channel = credentials.open_async(address, tls)
        self._stub: inference_pb2_grpc.InferenceAsyncStub
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End running calls and the connection. Idempotent."""
        await self._channel.close()

    def generate(
        self, prompt: str | None = None, **settings: Unpack[Settings]
    ) -> AsyncIterator[Chunk]:
        """Yield the answer as it is produced; cancelling the task stops the generation.

        The prompt is `prompt`, or else `messages` or `token_ids` among the settings; `Settings`
        explains them all.

            async for chunk in client.generate("Once upon a time", max_tokens=32):
                print(chunk.text, end="", flush=True)
        """
        request = requests.generate_request(prompt, settings)
        return self._chunks(request, settings.get("timeout", DEFAULT_TIMEOUT_S))

    async def complete(self, prompt: str | None = None, **settings: Unpack[Settings]) -> Completion:
        """The whole answer; takes what `generate` takes.

        (await client.complete("2 + 2 =", max_tokens=4)).text
        """
        return results.only_one(await self.complete_all(prompt, **settings))

    async def complete_all(
        self, prompt: str | None = None, **settings: Unpack[Settings]
    ) -> list[Completion]:
        """All of `n` answers, whole.

        [answer.text for answer in await client.complete_all("Once", n=3, temperature=1.0)]
        """
        return results.join_chunks([chunk async for chunk in self.generate(prompt, **settings)])

    async def tokenize(
        self, text: str | None = None, **settings: Unpack[TokenizeSettings]
    ) -> list[int]:
        """Token ids of a text, or of a conversation as the model would see it."""
        request = requests.tokenize_request(text, settings)
        timeout = settings.get("timeout", DEFAULT_TIMEOUT_S)
        return list((await self._call(self._stub.Tokenize, request, timeout)).token_ids)

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str = "",
        timeout: float = DEFAULT_TIMEOUT_S,  # noqa: ASYNC109  # becomes the call's deadline
    ) -> str:
        """Text of token ids, special tokens included."""
        request = requests.detokenize_request(token_ids, model)
        return (await self._call(self._stub.Detokenize, request, timeout)).text

    async def embed(self, inputs: Inputs, **settings: Unpack[EmbedSettings]) -> Embeddings:
        """Vectors of one or several texts, or the same as token ids; at most 2048.

        (await client.embed("A text.")).vectors[0]
        """
        request = texts.embed_request(inputs, settings)
        timeout = settings.get("timeout", DEFAULT_TIMEOUT_S)
        return results.embeddings_from_proto(await self._call(self._stub.Embed, request, timeout))

    async def score(
        self,
        first: str | Sequence[str],
        second: str | Sequence[str],
        **settings: Unpack[TextSettings],
    ) -> Scores:
        """How alike texts are: each of the second with its partner, or with the only one of the first.

        (await client.score("Rome", ["Paris", "a cat"])).values
        """
        request = texts.score_request(first, second, settings)
        timeout = settings.get("timeout", DEFAULT_TIMEOUT_S)
        return results.scores_from_proto(await self._call(self._stub.Score, request, timeout))

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int = 0,
        **settings: Unpack[TextSettings],
    ) -> Ranking:
        """Documents by how near they are to a query, the nearest first; with `top_n`, so many of them.

        (await client.rerank("Rome", ["a cat", "Paris"])).documents[0].index
        """
        request = texts.rerank_request(query, documents, top_n, settings)
        timeout = settings.get("timeout", DEFAULT_TIMEOUT_S)
        return results.ranking_from_proto(await self._call(self._stub.Rerank, request, timeout))

    async def models(
        self,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,  # noqa: ASYNC109  # becomes the call's deadline
    ) -> list[ModelInfo]:
        """The models that the mesh serves."""
        request = inference_pb2.ListModelsRequest()
        return results.models_from_proto(await self._call(self._stub.ListModels, request, timeout))

    async def _chunks(
        self, request: inference_pb2.GenerateRequest, seconds: float
    ) -> AsyncIterator[Chunk]:
        call = self._stub.Generate(request, timeout=seconds, metadata=self._metadata)
        try:
            async for response in call:
                yield results.chunk_from_proto(response)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        finally:
            call.cancel()

    async def _call(
        self, method: Callable[..., Awaitable[Response]], request: object, seconds: float
    ) -> Response:
        try:
            return await method(request, timeout=seconds, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
