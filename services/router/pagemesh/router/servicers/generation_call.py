"""A call whose answer is a generation: one body, or a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from google.api.httpbody_pb2 import HttpBody

from pagemesh.router.call import Call
from pagemesh.router.generation.admission import Admission
from pagemesh.router.openai.errors import error_body
from pagemesh.router.openai.job import Job
from pagemesh.router.servicers.explain import Explainer
from pagemesh.router.servicers.generation_answer import collect, stream
from pagemesh.router.servicers.http_answer import (
    ErrorBody,
    as_answerable,
    check_is_json,
    error_answer,
    events,
)
from pagemesh.router.servicers.read_call import AnyContext, read_call

Prepare = Callable[[bytes, Call], Awaitable[Job]]
"""From a body to the job that it asks for; raises PagemeshErrors."""


class GenerationCalls:
    """Runs such calls, each in a place of the router's."""

    def __init__(
        self,
        admission: Admission,
        request_timeout: float,
        *,
        explains_routes: bool,
        error_body: ErrorBody = error_body,
    ) -> None:
        """`error_body` has the dialect's words for what comes before an answer has begun."""
        self._admission = admission
        self._explainer = Explainer(is_allowed=explains_routes)
        self._request_timeout = request_timeout
        self._error_body = error_body

    async def answer(
        self, request: HttpBody, context: AnyContext, prepare: Prepare
    ) -> AsyncGenerator[HttpBody, None]:
        """The whole answer or its pieces; an error as status and body, or as the stream's last event."""
        job: Job | None = None
        begun = False
        try:
            with self._admission.place():
                check_is_json(request.content_type)
                explains = self._explainer.is_wanted(context)
                job = await prepare(request.data, read_call(self._request_timeout))
                with job.generator.start(job.request) as generation:
                    if explains:
                        self._explainer.explain(generation)
                    if not job.stream:
                        yield await collect(job, generation)
                        return
                    async with aclosing(stream(job, generation)) as bodies:
                        async for body in bodies:
                            begun = True
                            yield body
        # RPC boundary: clients of HTTP must get a body, which the server's own boundary cannot send.
        except Exception as error:
            mapped = as_answerable(error)
            if job is not None and begun:
                yield events(job.responder.failure(mapped))
            else:
                yield error_answer(mapped, self._error_body)
