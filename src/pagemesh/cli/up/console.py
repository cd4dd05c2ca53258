"""What `pagemesh up` prints: plain lines, as they happen."""

from __future__ import annotations

import shlex
import signal
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

from pagemesh.cli.up.credentials import Credentials

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
