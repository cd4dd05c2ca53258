"""What `pagemesh up` prints: plain lines, as they happen, and one streamed sample answer through the gateway."""

from __future__ import annotations

import http.client
import json
import shlex
import signal
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pagemesh.cli.up.credentials import Credentials
from pagemesh.errors import InternalError
from pagemesh.local.local_http import LocalConnection

QUESTION = "What is the capital of France?"


class Console:
    """Prints the life of the mesh; times count from its construction."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def starting(self, models: Sequence[str], names: Sequence[str], log_folder: Path) -> None:
        """Before the first process."""
        self.line(f"Starting {', '.join(names)} for {', '.join(models)}; logs in {log_folder}")

    def part_up(self, name: str) -> None:
        """A part serves."""
        self.line(f"  {name:<12} up after {self._elapsed():4.1f} s")

    def still_waiting(self, names: Sequence[str]) -> None:
        """Parts are slow to start."""
        self.line(f"  still starting after {self._elapsed():.0f} s: {', '.join(names)}")

    def part_died(self, name: str, code: int, delay: float, last_lines: Sequence[str]) -> None:
        """A part ended by itself and is started again."""
        self.line(f"{name} {ending(code)}; starting it again in {delay:g} s")
        for line in last_lines:
            self.line(f"  {name} | {line}")

    def part_back(self, name: str) -> None:
        """A part serves again."""
        self.line(f"{name} serves again")

    def banner(self, url: str, models: Sequence[str], credentials: Credentials) -> None:
        """How to use the mesh, by the example of its first model."""
        model = models[0]
        body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "{QUESTION}"}}]}}'
        headers = f"{credentials.curl_header} -H 'content-type: application/json'"
        curl = f"curl {url}/v1/chat/completions{headers} -d "
        key = credentials.python_value
        python = f"""\
            {"import os; " if key.startswith("os.") else ""}from openai import OpenAI
            client = OpenAI(base_url="{url}/v1", api_key={key})
            messages = [{{"role": "user", "content": "{QUESTION}"}}]
            answer = client.chat.completions.create(model="{model}", messages=messages)
            print(answer.choices[0].message.content)"""
        self.line(f"\npagemesh serves {', '.join(models)} at {url} after {self._elapsed():.1f} s\n")
        self.line(f"  {curl}{shlex.quote(body)}\n")
        self.line(textwrap.indent(textwrap.dedent(python), "  ") + "\n")

    def running(self) -> None:
        """Nothing more happens by itself."""
        self.line("\nPress Ctrl-C to stop.")

    def stopping(self) -> None:
        """The user has asked for the end."""
        self.line("\nStopping ...")

    def stopped(self) -> None:
        """Everything is gone."""
        self.line("Stopped.")

    def line(self, text: str) -> None:
        """Print a line at once, also into a pipe."""
        self.piece(f"{text}\n")

    def piece(self, text: str) -> None:
        """Print a part of a line at once, if it can be printed: a full disk ends no mesh.

        Raises BrokenPipeError when whoever read has gone.
        """
        try:
            print(text, end="", flush=True)
        except BrokenPipeError:
            raise
        except OSError:
            return

    def _elapsed(self) -> float:
        return time.monotonic() - self._started


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"


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
