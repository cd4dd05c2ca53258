"""The blocking client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


class Client:
    """A connection to a mesh, usable from several threads. Close it, or use it in a `with` block.

        with Client("127.0.0.1:8000") as client:
            answer = client.complete(messages=[{"role": "user", "content": "Hello!"}])
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
        self._channel = credentials.open_blocking(address, tls)
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End running calls and the connection. Idempotent."""
        self._channel.close()

    def generate(self, prompt: str | None = None, **settings: Unpack[Settings]) -> Iterator[Chunk]:
        """Yield the answer as it is produced; leaving the iteration early stops the generation.

        The prompt is `prompt`, or else `messages` or `token_ids` among the settings; `Settings`
        explains them all.

            for chunk in client.generate("Once upon a time", max_tokens=32):
                print(chunk.text, end="", flush=True)
        """
        request = requests.generate_request(prompt, settings)
        return self._chunks(request, settings.get("timeout", DEFAULT_TIMEOUT_S))

    def complete(self, prompt: str | None = None, **settings: Unpack[Settings]) -> Completion:
        """The whole answer; takes what `generate` takes.

        client.complete("2 + 2 =", max_tokens=4).text
        """
        return results.only_one(self.complete_all(prompt, **settings))

    def complete_all(
        self, prompt: str | None = None, **settings: Unpack[Settings]
    ) -> list[Completion]:
        """All of `n` answers, whole.

        [answer.text for answer in client.complete_all("Once", n=3, temperature=1.0)]
        """
        return results.join_chunks(self.generate(prompt, **settings))

    def tokenize(self, text: str | None = None, **settings: Unpack[TokenizeSettings]) -> list[int]:
        """Token ids of a text, or of a conversation as the model would see it."""
        request = requests.tokenize_request(text, settings)
        timeout = settings.get("timeout", DEFAULT_TIMEOUT_S)
        return list(self._call(self._stub.Tokenize, request, timeout).token_ids)

    def detokenize(
        self, token_ids: Sequence[int], *, model: str = "", timeout: float = DEFAULT_TIMEOUT_S
    ) -> str:
        """Text of token ids, special tokens included."""
        request = requests.detokenize_request(token_ids, model)
        return self._call(self._stub.Detokenize, request, timeout).text

    def embed(self, inputs: Inputs, **settings: Unpack[EmbedSettings]) -> Embeddings:
        """Vectors of one or several texts, or the same as token ids; at most 2048.

        client.embed("A text.").vectors[0]
        """
        request = texts.embed_request(inputs, settings)
        timeout = settings.get("timeout", DEFAULT_TIMEOUT_S)
        return results.embeddings_from_proto(self._call(self._stub.Embed, request, timeout))

    def score(
        self,
        first: str | Sequence[str],
        second: str | Sequence[str],
        **settings: Unpack[TextSettings],
    ) -> Scores:
        """How alike texts are: each of the second with its partner, or with the only one of the first.

        client.score("Rome", ["Paris", "a cat"]).values
        """
        request = texts.score_request(first, second, settings)
        timeout = settings.get("timeout", DEFAULT_TIMEOUT_S)
        return results.scores_from_proto(self._call(self._stub.Score, request, timeout))

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int = 0,
        **settings: Unpack[TextSettings],
    ) -> Ranking:
        """Documents by how near they are to a query, the nearest first; with `top_n`, so many of them.

        client.rerank("Rome", ["a cat", "Paris"]).documents[0].index
        """
        request = texts.rerank_request(query, documents, top_n, settings)
        timeout = settings.get("timeout", DEFAULT_TIMEOUT_S)
        return results.ranking_from_proto(self._call(self._stub.Rerank, request, timeout))

    def models(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[ModelInfo]:
        """The models that the mesh serves."""
        request = inference_pb2.ListModelsRequest()
        return results.models_from_proto(self._call(self._stub.ListModels, request, timeout))

    def _chunks(self, request: inference_pb2.GenerateRequest, timeout: float) -> Iterator[Chunk]:
        call = self._stub.Generate(request, timeout=timeout, metadata=self._metadata)
        try:
            for response in call:
                yield results.chunk_from_proto(response)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        finally:
            call.cancel()

    def _call(self, method: Callable[..., Response], request: object, timeout: float) -> Response:
        try:
            return method(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
