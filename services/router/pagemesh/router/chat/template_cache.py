"""Compiled chat templates of requests."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from pagemesh.errors import ConfigError, InvalidRequestError
from pagemesh.tokenizer.chat_template import ChatTemplate
from pagemesh.tokenizer.tokenizer import Tokenizer

MAX_TEMPLATES: Final = 32
"""Most that are kept; clients have one or two, which come with each of their requests."""


class TemplateCache:
    """The templates that were asked for last."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._variables = tokenizer.template_variables
        self._templates: OrderedDict[str, ChatTemplate] = OrderedDict()

    def get(self, source: str) -> ChatTemplate:
        """The template; InvalidRequestError when it is not valid Jinja."""
        template = self._templates.pop(source, None)
        if template is None:
            try:
                template = ChatTemplate(source, self._variables)
            except ConfigError as error:
                raise InvalidRequestError(error.message, param="chat_template") from error
            if len(self._templates) >= MAX_TEMPLATES:
                self._templates.popitem(last=False)
        self._templates[source] = template
        return template
