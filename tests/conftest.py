"""What every test runs under: quiet OpenMP threads, no network, fixed seeds, no process left behind."""

from __future__ import annotations

import gc
import os
from pathlib import Path

# Read when torch is first imported: its threads must not spin while the mesh's processes want the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
# Not the user's own, for kernels in all shapes; the processes of a mesh need not compile what others have.
os.environ["PAGEMESH_KERNEL_CACHE"] = str(Path(__file__).resolve().parent.parent / "build/kernels")

# Read when kernels are imported: without a GPU they run in Triton's interpreter, on tensors of the CPU.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

import random
import ssl
import sys
import time
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from typing import Any

import psutil
import pytest
import structlog
from hypothesis import HealthCheck, settings

from pagemesh.telemetry.logs import console_renderer
from tests.support.needs import need, promised
from tests.support.products import HEADER, mark_the_rest, put_costly_first
from tests.support.recent_logs import HasLogs, recent_logs

ROOT = Path(__file__).resolve().parent.parent

# Parts of the mesh run within tests. Logged errors look as in a process of theirs.
structlog.configure(
    processors=[*structlog.get_config()["processors"][:-1], console_renderer(colors=False)]
)

# How long an example takes, or to make one, says how busy the machine is.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# Inherited by every process that a test starts, also by one whose parent has died.
MARK = "PAGEMESH_TEST_SESSION"
LEFTOVER_DEADLINE_S = 10.0


# Tests of the first share meshes, and compare what they saw on one with what they saw on the other; those of the second
# share a mesh, those of the third the syntax of all files.
ONE_PROCESS = ("tests/conformance/", "tests/ecosystem/", "tests/hygiene/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out files, but folders whose tests share what takes long to make as a whole."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class FilesAndFolders(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return next((folder for folder in ONE_PROCESS if scope.startswith(folder)), scope)

    return FilesAndFolders(config, log)


def pytest_configure() -> None:
    """Refuse a promise of something that no test needs."""
    promised()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture is made: what the test is marked to need is there."""
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            need(name)


def pytest_report_header() -> str:
    return HEADER


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is made here stays: to look for garbage in it would take a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before those that are marked are left out."""
    mark_the_rest(config, items)
    put_costly_first(items)


def pytest_collection_finish() -> None:
    """Thousands of tests stay until the end: no collection of garbage shall walk through them again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure that nobody was there to see comes with what the processes of its fixtures logged."""
    report = yield
    if report.failed:
        # One of them may go by several names.
        names = {
            fixture: name for name, fixture in item.funcargs.items() if isinstance(fixture, HasLogs)
        }
        for fixture, name in names.items():
            report.sections.append((f"logs of {name}", recent_logs(fixture)))
    return report


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """Folder of the model that ships with the repository."""
    return ROOT / "models/demo"


@pytest.fixture(scope="session", autouse=True)
def clients_know_one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each client of httpx reads all that are known first, for plain HTTP as well: 40 ms, and hundreds are made."""
    if not find_spec("certifi"):
        yield
        return
    import certifi

    one = tmp_path_factory.mktemp("authorities") / "one.pem"
    head, end, _ = certifi.contents().partition("-----END CERTIFICATE-----\n")
    one.write_text(head + end)
    all_known = (certifi.where(), os.environ.get("SSL_CERT_FILE"))
    make = ssl.create_default_context

    def made(*purpose: ssl.Purpose, cafile: str | None = None, **trusted: Any) -> ssl.SSLContext:
        few = str(one) if cafile and cafile in all_known else cafile
        return make(*purpose, cafile=few, **trusted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", made)
        yield


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """Start every test from the same random state, without importing torch where it is not used."""
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


def _marked_processes(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


@pytest.fixture(scope="session", autouse=True)
def no_process_outlives_the_tests() -> Iterator[None]:
    """Fail the session when a process that a test started is still there at its end."""
    mark = os.environ[MARK] = str(os.getpid())
    yield
    deadline = time.monotonic() + LEFTOVER_DEADLINE_S
    while (left := _marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    commands = [f"{process.pid}: {' '.join(process.cmdline())}" for process in left]
    for process in left:
        process.kill()
    assert not commands, "processes outlived the tests:\n" + "\n".join(commands)


@pytest.fixture(scope="module")
def settled_heap() -> Iterator[None]:
    """For tests that count what garbage may hold: what is older costs their collections nothing."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()
