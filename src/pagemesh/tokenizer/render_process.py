"""Rendering with a template that a client sent: in a process that lives for this one rendering.

Whoever writes a template can have a single operation of it take any time and memory, which nothing inside a
process can stop. This one has neither secrets nor the environment of its parent, and the kernel ends it.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pagemesh.errors import ConfigError, InvalidRequestError
from pagemesh.tokenizer.chat_template import ChatTemplate, RenderOptions
from pagemesh.tokenizer.message_shape import Message

MAX_MEMORY_BYTES: Final = 1024 * 1024 * 1024
"""Address space of the process; it begins with some 200 MiB."""

MAX_CPU_SECONDS: Final = 3
"""Of which the start takes some 0.2; the sandbox itself gives up after one second."""

MAX_SECONDS: Final = 10.0
"""Until an answer, on a machine that has other things to do as well."""

_PARAM: Final = "chat_template"


def render_apart(
    source: str,
    variables: Mapping[str, str],
    messages: Sequence[Message],
    options: RenderOptions,
) -> str:
    """The prompt of a conversation. Blocks.

    Raises InvalidRequestError for a template that is none, or takes or writes too much.
    """
    asked = {
        "source": source,
        "variables": dict(variables),
        "messages": list(messages),
        "options": dataclasses.asdict(options),
    }
    try:
        ended = subprocess.run(
            [sys.executable, "-I", "-m", __name__],
            input=json.dumps(asked).encode(),
            capture_output=True,
            check=False,
            env={},
            timeout=MAX_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise InvalidRequestError(
            f"chat_template was given up after {MAX_SECONDS:g} s", param=_PARAM
        ) from None
    if ended.returncode != 0:
        raise InvalidRequestError(
            f"chat_template takes more than {MAX_CPU_SECONDS} s or {MAX_MEMORY_BYTES >> 20} MiB",
            param=_PARAM,
        )
    answer = json.loads(ended.stdout)
    if "error" in answer:
        raise InvalidRequestError(answer["error"], param=answer["param"])
    text: str = answer["text"]
    return text


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        template = ChatTemplate(asked["source"], asked["variables"])
        return {"text": template.render(asked["messages"], RenderOptions(**asked["options"]))}
    except ConfigError as error:
        return {"error": error.message, "param": _PARAM}
    except InvalidRequestError as error:
        return {"error": error.message, "param": error.param}


def _main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = json.load(sys.stdin.buffer)
    # Not before: what it was asked is as large as clients may send.
    # macOS refuses limits below what a process has reserved, which there is hundreds of times what it uses.
    if sys.platform != "darwin":
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    sys.stdout.write(json.dumps(_answer(asked)))


if __name__ == "__main__":
    _main()
