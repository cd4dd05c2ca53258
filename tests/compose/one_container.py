"""The image of a whole mesh, run as docs/deployment/container.md says."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import httpx

from tests.compose.container_engine import ContainerEngine
from tests.hygiene.tree import ROOT
from tests.support.late_imports import openai

_HEALTHY_DEADLINE_S: Final = 180.0

_PROCESSES: Final = """
import json, pathlib
found = []
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        found.append((int(folder.name), state, (folder / "cmdline").read_text().split("\\0")))
    except OSError:
        pass
print(json.dumps(found))
"""
"""The images have no `ps`."""


class OneContainer:
    """A container of the image, under the host's port that the engine chose."""

    def __init__(self, engine: ContainerEngine, identifier: str) -> None:
        self._engine = engine
        self.id = identifier

    @property
    def url(self) -> str:
        """Where the host reaches it."""
        return f"http://{self._engine.run('port', self.id, '8000').split()[0]}"

    def client(self) -> openai.OpenAI:
        """That asks once."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def wait_until_healthy(self) -> None:
        """Until it answers 200 to probes."""
        url, deadline = f"{self.url}/health", time.monotonic() + _HEALTHY_DEADLINE_S
        while not _is_healthy(url):
            assert self.state()["Running"], self.logs()
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.2)

    def state(self) -> dict[str, Any]:
        """What the engine says of it."""
        described: dict[str, Any] = json.loads(self._engine.run("inspect", self.id))[0]["State"]
        return described

    def logs(self) -> str:
        """All that it wrote."""
        return self._engine.logs(self.id)

    def execute(self, *command: str) -> str:
        """What a program in it prints; AssertionError when it fails."""
        return self._engine.run("exec", self.id, *command, timeout=60)

    def processes(self) -> list[tuple[int, str, list[str]]]:
        """Number, state and command line of each."""
        return [
            (number, state, words)
            for number, state, words in json.loads(self.execute("python", "-c", _PROCESSES))
        ]

    def kill_part(self, word: str) -> int:
        """SIGKILL to the process with the word on its command line; its number."""
        (killed,) = self._numbers(word)
        self.execute("python", "-c", f"import os; os.kill({killed}, 9)")
        return killed

    def wait_until_started_again(self, word: str, killed: int) -> None:
        """Until another process is where the killed one was."""
        deadline = time.monotonic() + _HEALTHY_DEADLINE_S
        while not self._numbers(word) - {killed}:
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.2)

    def _numbers(self, word: str) -> set[int]:
        return {number for number, _, words in self.processes() if word in words}

    def stop(self) -> float:
        """As `docker stop` does it; seconds that it took."""
        begin = time.monotonic()
        self._engine.run("stop", self.id, timeout=60)
        return time.monotonic() - begin

    def exit_code(self, within: float) -> int:
        """Of a container that ends by itself."""
        return int(self._engine.run("wait", self.id, timeout=within))


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def build(engine: ContainerEngine, name: str, arguments: dict[str, str]) -> None:
    """The image, of this tree."""
    given = [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
    dockerfile = ("--file", "deploy/serve/Dockerfile")
    engine.run("build", "--tag", name, *dockerfile, *given, str(ROOT), timeout=1200)


@contextmanager
def started(
    engine: ContainerEngine, image: str, options: Sequence[str] = (), flags: Sequence[str] = ()
) -> Iterator[OneContainer]:
    """A container that is gone at the end, whatever it does by then."""
    published = ("--detach", "--publish", "127.0.0.1::8000")
    identifier = engine.run("run", *published, *options, image, *flags).strip()
    try:
        yield OneContainer(engine, identifier)
    finally:
        engine.run("rm", "--force", "--volumes", identifier)
