"""Runs the blocks of a document in order, and compares what they print."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from typing import IO, Final

from tests.docs.blocks import PYTHON, Block
from tests.docs.desk import Desk
from tests.docs.listed import is_slow
from tests.docs.printed import differs

BLOCK_DEADLINE_S: Final = 90.0
SLOW_BLOCK_DEADLINE_S: Final = 900.0


class Reading:
    """Somebody who reads a document and types what stands there."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._python: subprocess.Popen[str] | None = None

    def run(self, block: Block) -> None:
        """Do what a block says; fail when it does not do what the document says."""
        seconds = SLOW_BLOCK_DEADLINE_S if is_slow(block) else BLOCK_DEADLINE_S
        if block.language == PYTHON:
            printed = self._run_python(block, seconds)
        else:
            printed = self._run_shell(block, seconds)
        if block.output is not None:
            options = block.output.options
            fault = differs(
                self._desk.there(printed),
                block.output.text,
                in_shape="shape" in options,
                in_order="unordered" not in options,
            )
            assert fault is None, f"{block.output.place}: {fault}"

    def _run_shell(self, block: Block, seconds: float) -> str:
        keep = "keep" in block.options
        self._desk.prepare(block.text, keep=keep)
        try:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", self._desk.here(block.text)],
                cwd=self._desk.folder,
                env=self._desk.environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds,
            )
        finally:
            if keep:
                self._desk.keep_servers()
            else:
                self._desk.stop_servers()
        exits = int(block.options.get("exits", "0"))
        assert done.returncode == exits, (
            f"{block.place}: exit code {done.returncode}, not {exits}\n{done.stdout}\n{done.stderr}"
        )
        return done.stdout

    def _run_python(self, block: Block, seconds: float) -> str:
        self._desk.prepare("", keep=False)
        process = self._session()
        assert process.stdin is not None and process.stdout is not None, "they are pipes"
        process.stdin.write(json.dumps({"code": self._desk.here(block.text)}) + "\n")
        process.stdin.flush()
        answer = json.loads(_line(process.stdout, seconds, block))
        assert answer["failure"] is None, f"{block.place}: {answer['failure']}"
        return str(answer["printed"])

    def _session(self) -> subprocess.Popen[str]:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-m", "tests.docs.python_session"],
                cwd=self._desk.folder,
                env=self._desk.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self._python

    def close(self) -> None:
        """The Python session ends."""
        if self._python is not None:
            self._python.kill()
            self._python.communicate()


def _line(stream: IO[str], seconds: float, block: Block) -> str:
    readable, _, _ = select.select([stream], [], [], seconds)
    assert readable, f"{block.place}: not done within {seconds:g} s"
    return stream.readline() or '{"printed": "", "failure": "the program ended its process"}'
