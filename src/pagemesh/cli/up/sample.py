"""One streamed sample answer through the gateway, so that the newcomer sees tokens arrive."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

from pagemesh.cli.up.console import QUESTION, Console
from pagemesh.cli.up.credentials import Credentials
from pagemesh.errors import InternalError
from pagemesh.local.local_http import LocalConnection

_TIMEOUT = 60.0
_MAX_TOKENS = 64


def show_sample(gateway: Path, model: str, credentials: Credentials, console: Console) -> None:
    """Ask the question of the banner and print the answer as it arrives; a failure is one line."""
    if credentials.is_required and not credentials.keys:
        console.line("No sample answer: the key file has no key that could be sent, only hashes.")
        return
    headers = {"content-type": "application/json"}
    if credentials.is_required:
        headers["authorization"] = f"Bearer {credentials.keys[0]}"
    console.piece(f"> {QUESTION}\n< ")
    try:
        for text in stream_chat(gateway, model, QUESTION, headers):
            console.piece(text)
        console.line("")
    except (OSError, http.client.HTTPException, InternalError) as error:
        console.line(f"(no answer: {error})")


def stream_chat(gateway: Path, model: str, question: str, headers: dict[str, str]) -> Iterator[str]:
    """Pieces of the answer to `question`. Raises InternalError for an error of the mesh."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": _MAX_TOKENS,
        "temperature": 0,
        "stream": True,
    }
    connection = LocalConnection(gateway, timeout=_TIMEOUT)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise InternalError(_message(json.loads(response.read())))
        for line in response:
            data = line.decode().removeprefix("data: ").strip()
            if data == "[DONE]":
                return
            if not line.startswith(b"data: "):
                continue
            event = json.loads(data)
            if "error" in event:
                raise InternalError(_message(event))
            for choice in event["choices"]:
                yield choice["delta"].get("content") or ""
    finally:
        connection.close()


def _message(body: dict[str, dict[str, str]]) -> str:
    return body["error"]["message"]
