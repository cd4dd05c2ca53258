"""A fake engine that notes what importers tell it."""

from __future__ import annotations

from typing import Any

from pagemesh.sampling.logprobs import TokenLogprobs
from tests.fakes.engine import FakeEngine


class RecordingEngine(FakeEngine):
    """Notes with how many tokens each import was given back, and the first tokens of others."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.imported: list[int] = []
        self.import_ids: list[str] = []
        self.first_logprobs: list[TokenLogprobs | None] = []

    def first_token(
        self, request_id: str, token_id: int, logprobs: TokenLogprobs | None = None
    ) -> None:
        self.first_logprobs.append(logprobs)
        super().first_token(request_id, token_id, logprobs)

    def finish_import(self, request_id: str, num_valid_tokens: int) -> None:
        self.imported.append(num_valid_tokens)
        self.import_ids.append(request_id)
        super().finish_import(request_id, num_valid_tokens)
