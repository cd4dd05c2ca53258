"""POST /v1/messages and /v1/messages/count_tokens: from a body to a job, or to a count."""

from __future__ import annotations

from typing import Any

from pagemesh.errors import UnsupportedError
from pagemesh.router.call import Call
from pagemesh.router.models import Models
from pagemesh.router.openai.job import Job


class MessagesEndpoint:
    """Prepares jobs for the models of a mesh."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def prepare(self, body: bytes, call: Call) -> Job:
        """A job from a body; raises PagemeshErrors."""
        raise UnsupportedError("/v1/messages is not served yet")

    async def count_tokens(self, body: bytes, call: Call) -> dict[str, Any]:
        """The number of tokens of a prompt."""
        raise UnsupportedError("/v1/messages/count_tokens is not served yet")
