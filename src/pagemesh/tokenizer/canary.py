"""A conversation that worker and router render and tokenize with their own files, to compare what comes out.

It holds what templates and tokenizers treat differently: turns, blanks at the ends, blank lines, numbers, signs,
scripts, characters of several code points, and code.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pagemesh.cache.block_hash import digest_text, digest_token_ids
from pagemesh.errors import InvalidRequestError
from pagemesh.tokenizer.chat_template import ChatTemplate
from pagemesh.tokenizer.tokenizer import Tokenizer

CONVERSATION: Final[Sequence[Mapping[str, str]]] = (
    {"role": "system", "content": "You are a canary. Sing when the names differ.\n"},
    {"role": "user", "content": "How much is 1234567 + 89.01e-3 − 0x1F?  Answer in one line."},
    {"role": "assistant", "content": " 1234536.08901\n\nThat's it: don't you'll they're I'VE."},
    {
        "role": "user",
        "content": "Grüße! Ça va? Привет, שלום, مرحبا, नमस्ते, 你好，世界。こんにちは 안녕하세요 👩🏽‍🚀🇪🇺 e\u0301\u200b!",
    },
    {
        "role": "assistant",
        "content": '```python\ndef f(x):\n\treturn {"a": [x ** 2, None]}  # <b>&amp;</b>\n```\r\n\u00a0~~~',
    },
    {
        "role": "user",
        "content": "   \n\n\n  UPPER lower MiXeD   spaces\t\ttabs ,;:!?… — “quotes”   ",
    },
)

# Templates may print the date.
_NOW: Final = datetime.datetime(2024, 2, 29, 13, 5, 9)


class CanaryText(NamedTuple):
    """What became of the conversation."""

    text_digest: bytes
    """Of the text that the chat template made; empty where it was not asked for."""
    token_digest: bytes
    """Of its token ids, or else of the plain conversation's."""


def canary_text(tokenizer: Tokenizer, *, chat: bool) -> CanaryText:
    """The conversation rendered, or as plain text; UnsupportedError where there is no template to render with."""
    text = _render(tokenizer.chat_template) if chat else _plain()
    # The template writes the special tokens itself.
    (token_ids,) = tokenizer.encode_batch([text], add_special_tokens=not chat)
    return CanaryText(digest_text(text) if chat else b"", digest_token_ids(token_ids))


def _render(template: ChatTemplate) -> str:
    """As much of the conversation as the template takes: some know no system message."""
    for messages in (CONVERSATION, CONVERSATION[1:]):
        try:
            return template.render(messages, now=_NOW)
        except InvalidRequestError:
            continue
    return _plain()


def _plain() -> str:
    return "\n".join(message["content"] for message in CONVERSATION)
