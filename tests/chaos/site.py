"""Where the chaos happens: a mesh whose parts are on machines of their own, joined by a network that can fail."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import httpx
import psutil

from benchmarks.kv.namespaces import Network
from tests.chaos.asking import Client, Outcome
from tests.chaos.disks import small_disks
from tests.chaos.far_up import GATEWAY_PORT
from tests.mesh.harness import Mesh, is_alive, running_command, until
from tests.mesh.router_calls import address_of, latest_requests, num_workers
from tests.support.valkey import Valkey, running_valkey

DEMO: Final = Path(__file__).resolve().parents[2] / "models/demo"
NUM_SEATS: Final = 4
MESH: Final = ("--model", str(DEMO), "--router", "2", "--decode", "2", "--no-share-kv-memory")
SMALL_STEPS: Final = (
    # Small steps and few slots: whoever has to wait somewhere does so for a while.
    *("--max-num-batched-tokens", "4", "--max-num-seqs", str(NUM_SEATS)),
    *("--remote-prefill-min-tokens", "64", "--lookup-timeout", "1"),
)
PREFILL: Final = "prefill-0"
DECODERS: Final = ("decode-0", "decode-1")
WORKERS: Final = (PREFILL, *DECODERS)
ROUTERS: Final = ("router-0", "router-1")
CLIENT: Final = "client"
VALKEY: Final = "valkey"
FAR_UP: Final = Path(__file__).with_name("far_up.py")
PROBE: Final = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}


class Place(NamedTuple):
    """Where a request is."""

    router: str
    decode: str | None
    """None while it has been sent to no worker."""


class Site:
    """A mesh, its network, its disks, and the Valkey that its kvstores share, if they do."""

    def __init__(
        self,
        mesh: Mesh,
        network: Network,
        disks: Path,
        valkey: Valkey | None,
        headers: Mapping[str, str],
    ) -> None:
        self.mesh = mesh
        self.network = network
        self.valkey = valkey
        self._disks = disks
        self._headers = dict(headers)
        self._answers: dict[str, Outcome] = {}
        self._probed = ""
        self._whole = {name: len(part.children()) for name, part in mesh.parts().items()}

    @property
    def parts(self) -> list[str]:
        """Names of the processes that `pagemesh up` started."""
        return list(self._whole)

    def logged(self) -> dict[str, str]:
        """Everything that the mesh said so far, by name."""
        return self.mesh.logged()

    def disk(self, part: str) -> Path:
        """The folder, on a small disk of its own, in which a part's log is."""
        return self._disks / part

    def ask(self, body: Mapping[str, Any]) -> Client:
        """A client on its own machine that asks at once."""
        return Client(self.mesh.address, body, self.network.entrance(CLIENT))

    def answer_to(self, body: Mapping[str, Any]) -> Outcome:
        """What an undisturbed mesh says; asked once."""
        name = json.dumps({key: body[key] for key in sorted(body) if key != "cache_salt"})
        if name not in self._answers:
            with self.ask(body) as client:
                assert client.wait_for_end(60), "an undisturbed request hangs"
                assert client.outcome.is_whole, client.outcome
                self._answers[name] = client.outcome
        return self._answers[name]

    def probe(self) -> bool:
        """Whether a new request is answered; as it should be, if it was before."""
        try:
            answer = self.mesh.http.post(
                f"{self.mesh.url}/v1/completions", json=PROBE, headers=self._headers
            )
        except httpx.TransportError:
            return False
        if answer.status_code != 200:
            return False
        text = answer.json()["choices"][0]["text"]
        self._probed = self._probed or text
        assert text == self._probed
        return True

    def wait_until_whole(self) -> None:
        """Fail unless every process is there soon, and only those, and nobody holds or runs anything."""
        until(self._is_whole, f"all parts are there: {self._whole}", 60)
        # Who was told to stop may be there until now.
        until(
            lambda: self._is_whole() and self._reaches_all(),
            f"all workers are reached: {self.mesh.health()}",
            60,
        )
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Fail unless what workers and routers hold for requests comes back soon."""
        until(lambda: not self.holders(), f"nothing is held: {self.holders()}")

    def holders(self) -> list[str]:
        """Who holds blocks or requests, or does not say."""
        counts = [(worker, self.mesh.num_used_blocks) for worker in WORKERS]
        return [
            name
            for name, count in [*counts, *((r, self.num_requests) for r in ROUTERS)]
            if _holds(count, name)
        ]

    def num_requests(self, router: str) -> float:
        """Requests that a router has let in and not ended."""
        return self.mesh.metric(router, "pagemesh:requests_in_progress")

    def place_of(self, client: Client) -> Place | None:
        """Where a client's request is; None when no router works at it, or all still read its text."""
        for router in ROUTERS:
            for row in latest_requests(address_of(self.mesh, router)):
                if row["id"] == client.request_id and row["end"] is None:
                    worker = row["places"][-1]["worker"] if row["places"] else None
                    return Place(router, worker)
        return None

    def _is_whole(self) -> bool:
        try:
            parts = self.mesh.parts()
            found = {name: len(part.children()) for name, part in parts.items() if is_alive(part)}
        except psutil.NoSuchProcess:
            return False
        return found == self._whole

    def _reaches_all(self) -> bool:
        try:
            addresses = [address_of(self.mesh, router) for router in ROUTERS]
        except (KeyError, psutil.NoSuchProcess):
            return False
        return all(num_workers(address) == (2, 1) for address in addresses)


def _holds(count: Callable[[str], float], name: str) -> bool:
    try:
        return count(name) > 0
    except (httpx.TransportError, AssertionError):
        # It is not there, or has just been started and knows of no blocks yet.
        return True


@contextmanager
def running_site(
    folder: Path,
    *,
    shared_index: bool,
    flags: Sequence[str] = SMALL_STEPS,
    headers: Mapping[str, str] = MappingProxyType({}),
    disk_kib: int = 256,
) -> Iterator[Site]:
    """Everything started: with two kvstores on one Valkey, or with one kvstore alone.

    Whoever asks sends the headers.
    """
    kvstores = ["kvstore-0", "kvstore-1"] if shared_index else ["kvstore"]
    parts = ["gateway", *ROUTERS, *kvstores, *WORKERS]
    with ExitStack() as stack:
        network = stack.enter_context(Network([*parts, CLIENT, VALKEY], {}))
        stack.enter_context(small_disks(folder / "logs", [*parts, "access"], disk_kib))
        flags, valkey = [*MESH, *flags, "--log-dir", str(folder / "logs")], None
        if shared_index:
            valkey = stack.enter_context(
                running_valkey(network.address(VALKEY), network.entrance(VALKEY))
            )
            flags += ["--kvstore", "2", "--index", valkey.url]
        homes = {name: (network.address(name), network.entrance(name)) for name in parts}
        sockets = folder / "sockets"
        sockets.mkdir()
        command = [sys.executable, "-P", str(FAR_UP)]
        mesh = stack.enter_context(
            running_command(
                [*command, json.dumps(homes), str(sockets), *flags],
                f"{network.address('gateway')}:{GATEWAY_PORT}",
                folder,
            )
        )
        site = Site(mesh, network, folder / "disks", valkey, headers)
        site.wait_until_whole()
        assert site.probe()
        yield site
