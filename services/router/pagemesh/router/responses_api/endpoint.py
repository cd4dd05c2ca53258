"""POST /v1/responses: from a body to a job."""

from __future__ import annotations

from pagemesh.errors import UnsupportedError
from pagemesh.router.call import Call
from pagemesh.router.models import Models
from pagemesh.router.openai.job import Job


class ResponsesEndpoint:
    """Prepares jobs for the models of a mesh."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def prepare(self, body: bytes, call: Call) -> Job:
        """A job from a body; raises PagemeshErrors."""
        raise UnsupportedError("/v1/responses is not served yet")
