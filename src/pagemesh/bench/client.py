"""Asks an OpenAI endpoint, and takes the times of what comes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from pagemesh.bench.answer_stream import AnswerStream, error_text
from pagemesh.bench.datasets import Sample
from pagemesh.bench.endpoint_settings import EndpointConfig
from pagemesh.bench.record import Record
from pagemesh.config.environment import endpoint_key_of_environment
from pagemesh.errors import InternalError

_KEEPALIVE_S: Final = 4.0
"""Less than what servers keep idle connections for, so that none is used that is just closed."""

_MAX_ERROR_CHARS: Final = 300


class RefusedError(Exception):
    """The endpoint answered, but with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.status = status
        self.text = text


class Client:
    """Connections to one endpoint, kept and used again; a context."""

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        key = endpoint_key_of_environment()
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=_KEEPALIVE_S, ssl=not self._config.insecure
            ),
            headers={**headers, "content-type": "application/json", **self._config.headers},
            # Of each request: see `send` and `models`.
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=2**20,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._opened.close()

    def body(self, sample: Sample, model: str, *, ignores_eos: bool) -> bytes:
        """A request as it is sent: made beforehand, because at high rates that takes its time."""
        config = self._config
        fields: dict[str, Any] = {"model": model}
        if config.backend == "openai":
            fields |= {"prompt": sample.prompt, "max_tokens": sample.num_output_tokens}
        else:
            fields["messages"] = [{"role": "user", "content": sample.prompt}]
            fields["max_completion_tokens"] = sample.num_output_tokens
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
        if config.temperature is not None:
            fields["temperature"] = config.temperature
        if ignores_eos:
            fields["ignore_eos"] = True
        fields |= config.extra_fields
        return json.dumps({k: v for k, v in fields.items() if v is not None}).encode()

    async def send(self, body: bytes, record: Record) -> None:
        """Send a request and read its answer; what goes wrong is in the record."""
        try:
            await self.stream(body, record, self._config.request_timeout)
        except TimeoutError:
            record.error = f"no end within {self._config.request_timeout:g} s"
        except RefusedError as refusal:
            record.error = str(refusal)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            record.error = describe(error)
        if not record.is_over:
            record.error = "the stream ended before the answer did"
        if record.error:
            record.end = time.perf_counter()

    async def stream(self, body: bytes, record: Record, seconds: float) -> None:
        """Likewise, with an exception for what goes wrong: RefusedError, TimeoutError, or one of aiohttp."""
        answer = AnswerStream(record)
        async with (
            asyncio.timeout(seconds),
            self._opened.post(self._config.url, data=body, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise _refusal(response, await response.read())
            try:
                async for data in response.content.iter_any():
                    answer.feed(data, time.perf_counter())
            finally:
                answer.close()

    async def models(self, seconds: float) -> list[str]:
        """Names of the models that the server lists. Raises as `stream` does, and ValueError for another answer."""
        async with (
            asyncio.timeout(seconds),
            self._opened.get(self._config.models_url, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise _refusal(response, await response.read())
            content = json.loads(await response.read())
        try:
            return [str(model["id"]) for model in content["data"]]
        except (TypeError, KeyError):
            raise ValueError(f"{self._config.models_url} has no list of models") from None

    @property
    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise InternalError("the client is used outside of its context")
        return self._session


def describe(error: Exception) -> str:
    """An exception of aiohttp or of the system, for people."""
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        is_lookup = isinstance(cause, socket.gaierror)
        return str(cause.strerror if is_lookup or not cause.errno else os.strerror(cause.errno))
    return str(error) or type(error).__name__


def _refusal(response: aiohttp.ClientResponse, body: bytes) -> RefusedError:
    text = body.decode(errors="replace")
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if isinstance(content, dict):
        text = error_text(content.get("error", content.get("detail", content)))
    return RefusedError(response.status, text[:_MAX_ERROR_CHARS].strip() or str(response.reason))
