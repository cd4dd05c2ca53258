"""Renders conversations, and keeps the router's event loop free of those that take long."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from pagemesh.router.openai.chat_request import ChatRequest
from pagemesh.tokenizer.chat_template import ChatTemplate, RenderOptions
from pagemesh.tokenizer.render_process import render_apart
from pagemesh.tokenizer.tokenizer import Tokenizer

SLOW_SECONDS: Final = 0.02
"""A template that once took longer is never again rendered where all streams wait for it."""

MAX_AT_ONCE: Final = 2
"""Renderings that run beside the event loop; others wait for these, which end soon."""


PATIENCE: Final = 30.0
"""Seconds for one that is rendered beside the event loop, behind others."""


class Rendering:
    """Renders for one model."""

    def __init__(self) -> None:
        self._slow: set[str] = set()
        self._free = asyncio.Semaphore(MAX_AT_ONCE)

    async def with_template(
        self, template: ChatTemplate, fields: ChatRequest, options: RenderOptions
    ) -> str:
        """The prompt, by a template of the model or the operator. Raises InvalidRequestError."""
        messages = fields.template_messages()
        if template.source in self._slow:
            async with asyncio.timeout(PATIENCE), self._free:
                return await asyncio.to_thread(template.render, messages, options)
        began_at = time.monotonic()
        try:
            return template.render(messages, options)
        finally:
            if time.monotonic() - began_at > SLOW_SECONDS:
                self._slow.add(template.source)

    async def with_source(
        self,
        source: str,
        tokenizer: Tokenizer,
        fields: ChatRequest,
        options: RenderOptions,
    ) -> str:
        """The prompt, by a template that came with the request. Raises InvalidRequestError."""
        async with asyncio.timeout(PATIENCE), self._free:
            return await asyncio.to_thread(
                render_apart,
                source,
                tokenizer.template_variables,
                fields.template_messages(),
                options,
            )
