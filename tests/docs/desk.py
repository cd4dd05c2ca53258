"""Where a document's commands run: a folder like the repository's root, a path to the programs, own ports."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from pagemesh.config import MeshTlsConfig
from pagemesh.identity.roles import MeshRole
from pagemesh.identity.throw_away import ThrowAwayAuthority
from tests.docs.stand_ins import DESK, NAMES, PORTS, SERVERS
from tests.hygiene.tree import FOREIGN, ROOT
from tests.mesh.harness import is_alive
from tests.support.certificates import make_certificate
from tests.support.ports import free_port
from tests.support.valkey import Valkey

GATEWAY, KVSTORE, ROUTER, REDIS = 8000, 7000, 7001, 6379
"""Ports as the documents name them."""

_PORT: Final = re.compile(r"(?:(?<=:)|(?<=port )|(?<=port=))[1-9]\d{3}\b(?!:)")
_OPENED: Final = re.compile(r"--port[ =](\d+)")
_SERVES: Final = re.compile(
    r"^(?:.*\s)?(?:pagemesh (?:up|serve|gateway|router|decode|prefill|kvstore)|make run|envoy -c)\b(?!.*--help)",
    re.MULTILINE,
)
_HTTP: Final = re.compile(r"pagemesh (?:up|serve|gateway)|make run|envoy -c")
# Machines that the documents speak of: here all of them are this one.
_HOSTS: Final = {
    "redis://redis:": "redis://127.0.0.1:",
    "kv-0:7000,kv-1:7000": "127.0.0.1:7000",
    "https://llm.example": "http://127.0.0.1:8000",
}
STOP_DEADLINE_S: Final = 20.0


_OF_MAKE: Final = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS")


class Desk:
    """One document's; `mesh_ports` are those of a mesh that is there already, by the number in documents."""

    def __init__(self, folder: Path, mesh_ports: Mapping[int, int]) -> None:
        self.folder = folder
        self._mesh_ports = dict(mesh_ports)
        self._kept: dict[int, int] = {}
        self._kept_servers: set[Path] = set()
        self._ports: dict[int, int] = {}
        self._valkey: Valkey | None = None
        self._furnish()
        self.prepare("", keep=False)

    def prepare(self, commands: str, *, keep: bool) -> None:
        """Give ports to what these commands open; with `keep` it stays for the rest of the document."""
        opened = set()
        if _SERVES.search(commands):
            opened = {int(port) for port in _OPENED.findall(commands)} - {0}
            if _HTTP.search(commands):
                opened.add(GATEWAY)
        fresh = {port: free_port() for port in sorted(opened)}
        self._ports = {**self._mesh_ports, **self._kept, **fresh}
        if keep:
            self._kept.update(fresh)
        self._write_ports()

    def here(self, text: str) -> str:
        """A document's text with hosts and ports as they are here."""
        for host, ours in _HOSTS.items():
            text = text.replace(host, ours)
        if f":{REDIS}" in text:
            self._ports[REDIS] = self._redis_port()
        return _PORT.sub(self._port_here, text)

    def there(self, text: str) -> str:
        """What was printed here, with ports as in documents."""
        for port, ours in self._ports.items():
            text = re.sub(rf"(?<=:){ours}\b", str(port), text)
        return text

    def environment(self) -> dict[str, str]:
        """For the commands."""
        programs = [str(self.folder / ".venv/bin"), str(Path(sys.executable).parent)]
        # `make` must not take what the `make` that runs the tests was told for meant for itself.
        ours = {key: value for key, value in os.environ.items() if key not in _OF_MAKE}
        return {
            **ours,
            "PATH": os.pathsep.join([*programs, os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "NO_COLOR": "1",
            "COLUMNS": "120",
            DESK: str(self.folder),
        }

    def keep_servers(self) -> None:
        """What runs now stays until the end of the document."""
        self._kept_servers.update((self.folder / SERVERS).glob("*.json"))

    def stop_servers(self) -> None:
        """End what the commands have left running and is not kept, as Ctrl-C would."""
        notes = sorted(set((self.folder / SERVERS).glob("*.json")) - self._kept_servers)
        running = [process for note in notes if (process := _noted(note))]
        for process in running:
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + STOP_DEADLINE_S
        # Nobody may be there to reap them: one that has ended counts as gone.
        while (left := [p for p in running if is_alive(p)]) and time.monotonic() < deadline:
            time.sleep(0.02)
        for process in left:
            process.kill()
        for note in notes:
            note.unlink()
        assert not left, f"still there {STOP_DEADLINE_S:g} s after SIGINT: {left}"

    def close(self) -> None:
        """Everything that was started is gone."""
        self._kept_servers.clear()
        try:
            self.stop_servers()
        finally:
            if self._valkey is not None:
                self._valkey.kill()

    def _port_here(self, match: re.Match[str]) -> str:
        port = int(match[0])
        if port not in self._ports:
            self._ports[port] = free_port()
        return str(self._ports[port])

    def _write_ports(self) -> None:
        (self.folder / PORTS).write_text(json.dumps(self._ports), encoding="utf-8")

    def _redis_port(self) -> int:
        if self._valkey is None:
            self._valkey = Valkey()
            self._valkey.start()
        return int(self._valkey.url.rpartition(":")[2].partition("/")[0])

    def _furnish(self) -> None:
        """Everything of the repository's root, the programs, and what readers are to have of their own."""
        for entry in ROOT.iterdir():
            if entry.name not in FOREIGN:
                (self.folder / entry.name).symlink_to(entry)
        programs = self.folder / ".venv/bin"
        programs.mkdir(parents=True)
        for name in NAMES:
            program = programs / name
            program.write_text(
                f"#!{sys.executable} -P\nfrom tests.docs.stand_ins import main\nmain({name!r})\n"
            )
            program.chmod(0o755)
        (programs / "activate").write_text(f'PATH="{programs}:$PATH"\n')
        (self.folder / SERVERS).mkdir()
        models = self.folder / "path/to/a"
        models.mkdir(parents=True)
        for name in ("llama", "bert"):
            (models / name).symlink_to(ROOT / "models/demo")
        pair = make_certificate(self.folder, "server")
        pair.certificate.rename(self.folder / "server.pem")
        pair.key.rename(self.folder / "server.key")
        (self.folder / "clients.pem").write_bytes((self.folder / "server.pem").read_bytes())
        files = MeshTlsConfig(
            *(str(self.folder / name) for name in ("tls.crt", "tls.key", "ca.crt"))
        )
        ThrowAwayAuthority().issue(files, [MeshRole.ROUTER])


def _noted(note: Path) -> psutil.Process | None:
    try:
        process = psutil.Process(json.loads(note.read_text())["pid"])
    except psutil.NoSuchProcess:
        return None
    return process if is_alive(process) else None


@contextmanager
def desk_at(folder: Path, mesh_ports: Mapping[int, int]) -> Iterator[Desk]:
    """A desk; what was started on it is gone afterwards."""
    desk = Desk(folder, mesh_ports)
    try:
        yield desk
    finally:
        desk.close()
