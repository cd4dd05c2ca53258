"""Clients that others wrote, against whole meshes behind real Envoy, on every path that KV can take."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import pydantic
import pytest

from tests.mesh.harness import DEADLINE_S, Mesh, running_mesh
from tests.support.late_imports import anthropic, langchain_openai, openai
from tests.support.node_scripts import installed

# Otherwise LiteLLM fetches a table of prices from the internet when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

HERE = Path(__file__).resolve().parent
DEMO = HERE.parents[1] / "models/demo"
KEY = pydantic.SecretStr("none")
_RUNNING = ExitStack()

Piece = TypeVar("Piece")


class Mode(NamedTuple):
    """A way of serving, on which clients must see the same."""

    name: str

    arguments: tuple[str, ...]
    """Of `pagemesh up`."""

    disturb: Callable[[Mesh], None]
    """What happens to a mesh while a client reads a stream."""


def nothing(mesh: Mesh) -> None:
    """The stream is left alone."""


MODES = (
    Mode("aggregated", ("--prefill", "0"), nothing),
    # Without a prefix cache, every prompt of a block and more is prefilled remotely, however often it is asked.
    Mode(
        "disaggregated",
        ("--remote-prefill-min-tokens", "1", "--no-enable-prefix-caching"),
        nothing,
    ),
)


class Served(NamedTuple):
    """A mesh and what is done to it."""

    mesh: Mesh
    mode: Mode

    def disturbed(self, stream: Iterable[Piece]) -> Iterator[Piece]:
        """A stream, to which the mode's disturbance happens behind its first piece."""
        pieces = iter(stream)
        yield next(pieces)
        self.mode.disturb(self.mesh)
        yield from pieces


@pytest.fixture(scope="session", params=MODES, ids=lambda mode: mode.name)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A mesh with the demo model, for all tests of the folder: pytest runs them mode by mode."""
    mode: Mode = request.param
    arguments = ("--model", str(DEMO), "--no-sample", *mode.arguments)
    mesh = _RUNNING.enter_context(running_mesh(tmp_path_factory.mktemp(mode.name), *arguments))
    _RUNNING.callback(mesh.wait_until_idle)
    yield Served(mesh, mode)
    _RUNNING.close()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Behind the folder's last test the mesh ends: a session lasts until the process has run all its other tests."""
    if nextitem is None or HERE not in nextitem.path.parents:
        _RUNNING.close()


@pytest.fixture
def mesh(served: Served) -> Mesh:
    return served.mesh


@pytest.fixture
def client(mesh: Mesh) -> openai.OpenAI:
    return mesh.client()


@pytest.fixture
def claude(mesh: Mesh) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=mesh.url, api_key="none", max_retries=0, timeout=DEADLINE_S
    ) as client:
        yield client


class Same(Protocol):
    """Fails unless a test tells the same in every mode."""

    def __call__(self, *told: object, numbers: Sequence[float] = ()) -> None: ...


@pytest.fixture(scope="session")
def told_in_first_mode() -> dict[str, tuple[object, Sequence[float]]]:
    """By test."""
    return {}


@pytest.fixture
def same(
    request: pytest.FixtureRequest,
    served: Served,
    told_in_first_mode: dict[str, tuple[object, Sequence[float]]],
) -> Same:
    name = f"{request.node.path.name}::{request.node.name.replace(served.mode.name, '')}"

    def check(*told: object, numbers: Sequence[float] = ()) -> None:
        first, first_numbers = told_in_first_mode.setdefault(name, (told, numbers))
        assert told == first
        # Of the demo model in float32, whose prompts are computed in chunks of other sizes.
        assert numbers == pytest.approx(first_numbers, abs=2e-4)

    return check


@pytest.fixture
def chain(served: Served) -> langchain_openai.ChatOpenAI:
    return langchain_openai.ChatOpenAI(
        model="demo", base_url=f"{served.mesh.url}/v1", api_key=KEY, temperature=0, max_retries=0
    )


@pytest.fixture
def lite(served: Served) -> dict[str, Any]:
    """What every call of LiteLLM is told."""
    base = f"{served.mesh.url}/v1"
    return {"model": "openai/demo", "api_base": base, "api_key": "none", "num_retries": 0}


@pytest.fixture
def event_loop_of_thread() -> Iterator[None]:
    """For LiteLLM, which otherwise makes one whenever it has none, and leaves it open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs a script of `node/` with arguments, where the packages that it needs are installed."""
    return installed(HERE / "node", tmp_path_factory.mktemp("node"))
