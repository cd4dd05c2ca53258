"""The supervisor with stand-in processes: start, restart, refusal, order and completeness of the end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from pagemesh.cli.up import mesh
from pagemesh.cli.up.console import Console
from pagemesh.cli.up.mesh import Mesh
from pagemesh.cli.up.plan import MeshPlan, PartPlan, Stage
from pagemesh.config import MeshTlsConfig
from pagemesh.errors import ConfigError, InternalError
from pagemesh.identity.roles import MeshRole
from tests.support.ports import free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[4]
STAND_IN = Path(__file__).with_name("stand_in.py")


class MeshUnderTest:
    """A mesh of stand-ins and what they noted."""

    def __init__(self, folder: Path, kinds: dict[str, str], grace_period: float = 1.0) -> None:
        self.notes = folder
        self.ports = {kind: free_port() for kind in kinds}
        parts = tuple(self._part(name, kind) for name, kind in kinds.items())
        url = f"http://127.0.0.1:{self.ports.get('gateway', 1)}"
        socket = folder / "http.sock"
        plan = MeshPlan(parts, ("model",), url, socket, grace_period, 60.0, MeshTlsConfig())
        self.mesh = Mesh(plan, folder, Console())

    def pids(self, name: str) -> list[int]:
        note = self.notes / f"{self.ports[name]}.pids"
        return [int(line) for line in note.read_text().split()] if note.exists() else []

    def stop_order(self) -> list[str]:
        names = {str(port): name for name, port in self.ports.items()}
        return [names[port] for port in (self.notes / "order").read_text().split()]

    def running(self) -> list[str]:
        return [name for name in self.ports for pid in self.pids(name) if psutil.pid_exists(pid)]

    def _part(self, name: str, kind: str) -> PartPlan:
        stages = {"gateway": Stage.GATEWAY, "router": Stage.ROUTER, "kvstore": Stage.KVSTORE}
        address = f"127.0.0.1:{self.ports[name]}"
        command = (sys.executable, str(STAND_IN), kind, address, str(self.notes))
        stage, role = stages.get(name, Stage.WORKER), MeshRole(name.partition("-")[0])
        work = name.partition("-")[0]
        return PartPlan(name, stage, command, role, MeshTlsConfig(), address, {}, work)


WHOLE = {"kvstore": "grpc", "router": "grpc", "decode-0": "grpc", "gateway": "http"}


async def test_parts_are_stopped_callers_first(tmp_path: Path) -> None:
    # They end at once; on a busy machine that may be late.
    under_test = MeshUnderTest(tmp_path, WHOLE, grace_period=20.0)
    await under_test.mesh.start()
    await under_test.mesh.stop()
    first, second, *others = under_test.stop_order()
    # Together: what routers say last, the gateway carries.
    assert {first, second} == {"gateway", "router"}
    assert others == ["decode-0", "kvstore"]
    assert under_test.running() == []


async def test_a_killed_part_is_restarted_and_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    under_test = MeshUnderTest(tmp_path, WHOLE)
    try:
        await under_test.mesh.start()
        os.kill(under_test.pids("decode-0")[0], signal.SIGKILL)
        await wait_until(
            lambda: len(under_test.pids("decode-0")) == 2, "decode-0 is started again", 20
        )
        printed = ""
        async with asyncio.timeout(20):
            while "decode-0 serves again" not in printed:
                printed += capfd.readouterr().out
                await asyncio.sleep(0.02)
        assert "decode-0 was killed by SIGKILL; starting it again in 0.5 s" in printed
        assert len(under_test.pids("router")) == 1
    finally:
        await under_test.mesh.stop()
    assert under_test.running() == []


async def test_a_part_that_is_told_to_stop_is_back_soon_however_often(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    under_test = MeshUnderTest(tmp_path, WHOLE)
    printed = ""
    try:
        await under_test.mesh.start()
        for number in (1, 2, 3):
            os.kill(under_test.pids("router")[-1], signal.SIGTERM)
            async with asyncio.timeout(20):
                while printed.count("router serves again") < number:
                    printed += capfd.readouterr().out
                    await asyncio.sleep(0.02)
    finally:
        await under_test.mesh.stop()
    assert printed.count("starting it again in 0.5 s") == 3


async def test_a_part_whose_log_cannot_be_opened_is_restarted_all_the_same(tmp_path: Path) -> None:
    under_test = MeshUnderTest(tmp_path, WHOLE)
    try:
        await under_test.mesh.start()
        log = tmp_path / "decode-0.log"
        log.unlink()
        log.mkdir()
        os.kill(under_test.pids("decode-0")[0], signal.SIGKILL)
        await wait_until(
            lambda: len(under_test.pids("decode-0")) == 2, "decode-0 is started again", 20
        )
    finally:
        await under_test.mesh.stop()
    assert under_test.running() == []


@pytest.mark.parametrize("others", [{}, {"decode-1": "grpc"}], ids=["alone", "with another"])
async def test_a_mesh_ends_when_what_it_needs_does_not_come_back(
    tmp_path: Path, others: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh, "_FIRST_DELAY", 0.01)
    monkeypatch.setattr(mesh, "_FAILED_STARTS", 2)
    under_test = MeshUnderTest(tmp_path, {**WHOLE, "decode-0": "once", **others})
    try:
        await under_test.mesh.start()
        watching = asyncio.create_task(under_test.mesh.watch())
        os.kill(under_test.pids("decode-0")[0], signal.SIGKILL)
        await wait_until(lambda: len(under_test.pids("decode-0")) >= 3, "it failed twice", 30)
        if others:
            # The other one does the work; this one is tried on.
            await wait_until(lambda: len(under_test.pids("decode-0")) >= 5, "four times", 30)
            assert not watching.done()
            watching.cancel()
        else:
            with pytest.raises(InternalError, match="decode-0 ended with exit code 1"):
                await asyncio.wait_for(watching, 30)
    finally:
        await under_test.mesh.stop()
    assert under_test.running() == []


async def test_a_refusal_of_one_part_ends_the_start_with_its_sentence(tmp_path: Path) -> None:
    under_test = MeshUnderTest(tmp_path, {**WHOLE, "decode-0": "refuse"})
    try:
        with pytest.raises(ConfigError) as caught:
            await under_test.mesh.start()
    finally:
        await under_test.mesh.stop()
    assert caught.value.message == ("decode-0 cannot start: --model is 'x', but must be a folder")
    assert under_test.running() == []


async def test_a_crash_at_the_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    under_test = MeshUnderTest(tmp_path, {**WHOLE, "router": "crash"})
    try:
        with pytest.raises(InternalError, match="router ended with exit code 1") as caught:
            await under_test.mesh.start()
    finally:
        await under_test.mesh.stop()
    assert "ZeroDivisionError: by design" in caught.value.message


async def test_a_part_that_ignores_sigterm_is_killed_within_five_seconds(tmp_path: Path) -> None:
    stubborn = {name: kind if kind == "http" else "stubborn" for name, kind in WHOLE.items()}
    under_test = MeshUnderTest(tmp_path, stubborn)
    await under_test.mesh.start()
    started = time.monotonic()
    await under_test.mesh.stop()
    assert time.monotonic() - started < 5.0
    assert under_test.running() == []


async def test_parts_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import asyncio, pathlib, sys\n"
        "from tests.unit.cli.up.test_supervision import MeshUnderTest, WHOLE\n"
        "async def main():\n"
        "    under_test = MeshUnderTest(pathlib.Path(sys.argv[1]), WHOLE)\n"
        "    await under_test.mesh.start()\n"
        "    print(*[under_test.pids(name)[0] for name in WHOLE], flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(tmp_path), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert supervisor.stdout is not None
    pids: list[int] = []
    async with asyncio.timeout(30):
        while len(pids) != len(WHOLE):
            pids = [
                int(word) for word in (await supervisor.stdout.readline()).split() if word.isdigit()
            ]
    supervisor.kill()
    await supervisor.wait()
    await wait_until(
        lambda: not any(psutil.pid_exists(pid) for pid in pids), "all parts are gone", 5
    )
