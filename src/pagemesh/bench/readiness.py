"""Whether the endpoint is there and takes what it will be sent: found out before anything is measured."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import aiohttp

from pagemesh.bench.client import Client, RefusedError, describe
from pagemesh.bench.datasets import Sample
from pagemesh.bench.endpoint_settings import EndpointConfig
from pagemesh.bench.record import Record
from pagemesh.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    PagemeshError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)

_PAUSE_S: Final = 0.5
_ANSWER_S: Final = 60.0
"""For one attempt; models that are just loaded take their time."""

_PROBE: Final = Sample("Hello", 1, 1)
_AWAITED: Final = {500, 502, 503, 504}
"""Statuses of a server, or of what is in front of it, that may yet be ready."""

_ERRORS: Final[dict[int, type[PagemeshError]]] = {
    401: UnauthenticatedError,
    403: PermissionDeniedError,
    404: ModelNotFoundError,
    429: OverloadedError,
}
_HINTS: Final = {
    401: "; the key comes from OPENAI_API_KEY or PAGEMESH_API_KEY in the environment",
    404: "; see --model and --endpoint",
}


async def await_ready(client: Client, config: EndpointConfig) -> str:
    """The name of the model, as soon as it answers a short request.

    Raises a PagemeshError in one sentence: at once for what waiting cannot mend, else when the time of
    --ready-check-timeout-sec is over.
    """
    deadline = time.monotonic() + config.ready_check_timeout_sec
    while True:
        try:
            return await _ask(client, config)
        except RefusedError as refusal:
            failure = _refused(config, refusal)
            if refusal.status not in _AWAITED:
                raise failure from None
        except TimeoutError:
            failure = UnavailableError(f"{config.url} does not answer within {_ANSWER_S:g} s")
        except (aiohttp.ClientError, OSError) as error:
            failure = UnavailableError(f"{config.url} cannot be reached: {describe(error)}")
        except ValueError as error:
            raise UnavailableError(
                f"{config.url} does not answer as OpenAI's API does: {error}"
            ) from None
        if time.monotonic() + _PAUSE_S > deadline:
            raise failure
        await asyncio.sleep(_PAUSE_S)


async def _ask(client: Client, config: EndpointConfig) -> str:
    model = config.model or await _first_model(client, config)
    record = Record(due=0.0)
    await client.stream(client.body(_PROBE, model, ignores_eos=False), record, _ANSWER_S)
    if record.error:
        raise RefusedError(500, record.error)
    if not record.is_finished:
        raise ValueError("there is no stream of events with an answer")
    return model


async def _first_model(client: Client, config: EndpointConfig) -> str:
    names = await client.models(_ANSWER_S)
    if not names:
        raise ModelNotFoundError(f"{config.models_url} lists no model; see --model")
    return names[0]


def _refused(config: EndpointConfig, refusal: RefusedError) -> PagemeshError:
    kind = _ERRORS.get(
        refusal.status, UnavailableError if refusal.status >= 500 else InvalidRequestError
    )
    hint = _HINTS.get(refusal.status, "")
    return kind(f"{config.url} answers {refusal.status}: {refusal.text.rstrip('.')}{hint}")
