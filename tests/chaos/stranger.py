"""A worker of another model under the name of the mesh's: what must not be let in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pagemesh.local.processes import bound_to
from tests.chaos.site import CLIENT, DEMO, Site
from tests.mesh.harness import option, until

NAME: Final = "demo"
WORKER_ID: Final = "stranger"
REFUSED_WITHIN_S: Final = 60.0


class Stranger:
    """A process that asks to be let in again and again, on the clients' machine. Ended by `close`."""

    def __init__(self, site: Site, role: str) -> None:
        self._site = site
        self._folder = TemporaryDirectory()
        model = Path(self._folder.name) / "model"
        shutil.copytree(DEMO, model)
        _change_a_weight(model / "model.safetensors")
        decode = site.mesh.parts()["decode-0"]
        flags = ["--model", str(model), "--served-model-name", NAME, "--worker-id", WORKER_ID]
        flags += ["--kvstore", option(decode, "--kvstore") or "", "--threads", "1"]
        flags += ["--host", site.network.address(CLIENT), "--log-level", "error"]
        command = (sys.executable, "-P", "-m", "pagemesh.cli", role, *flags)
        self._command = bound_to(os.getpid(), (*site.network.entrance(CLIENT), *command))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns at once."""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def wait_until_refused(self) -> None:
        """Fail unless the mesh says aloud that it does not let it in."""
        kvstores = [name for name in self._site.parts if name.startswith("kvstore")]

        def refusals() -> list[str]:
            entries = [
                each for name in kvstores for each in self._site.mesh.log(name, "rpc refused")
            ]
            return [each["error"] for each in entries if f"'{WORKER_ID}'" in each["error"]]

        until(refusals, "the stranger is refused", REFUSED_WITHIN_S)

    def close(self) -> None:
        """Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
        self._folder.cleanup()


def _change_a_weight(path: Path) -> None:
    """Turn one bit of the last one."""
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
