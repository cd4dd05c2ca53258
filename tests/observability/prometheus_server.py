"""A real Prometheus in a process and folder of its own."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.needs import program
from tests.support.ports import free_port

_DEADLINE_S = 30.0


class PrometheusServer:
    """What can be asked of it."""

    def __init__(self, address: str) -> None:
        self._http = httpx.Client(base_url=f"http://{address}/api/v1", timeout=_DEADLINE_S)

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, **parameters: str) -> Any:
        """An answer's data. Fails with what Prometheus says where it refuses."""
        answer = self._http.get(path, params=parameters).json()
        assert answer["status"] == "success", f"{parameters}: {answer.get('error')}"
        return answer["data"]

    def values(self, expr: str) -> list[float]:
        """The numbers that an expression has now; those of nothing by nothing are none."""
        found = [float(sample["value"][1]) for sample in self.get("query", query=expr)["result"]]
        return [value for value in found if not math.isnan(value)]

    def is_ready(self) -> bool:
        try:
            return self._http.get("/status/runtimeinfo").status_code == 200
        except httpx.TransportError:
            return False


def _config(scrapes: Sequence[Mapping[str, Any]], rules: Sequence[Path]) -> str:
    content = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "1s"},
        "rule_files": list(map(str, rules)),
        "scrape_configs": list(scrapes),
    }
    return yaml.safe_dump(content)


@contextmanager
def running_prometheus(
    folder: Path, scrapes: Sequence[Mapping[str, Any]], rules: Sequence[Path]
) -> Iterator[PrometheusServer]:
    """One that scrapes twice a second and has these rules; gone afterwards."""
    config, port = folder / "prometheus.yml", free_port()
    config.write_text(_config(scrapes, rules))
    command = [
        program("prometheus", of="prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    server = PrometheusServer(f"127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + _DEADLINE_S
        while not server.is_ready():
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield server
    finally:
        server.close()
        process.terminate()
        process.wait(20)
