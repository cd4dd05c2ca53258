"""What is done to a process: the columns of the matrix, each with its beginning and its end."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

import psutil

from benchmarks.kv.namespaces import Cable
from tests.chaos.disks import fill, make_room
from tests.chaos.site import CLIENT, PREFILL, VALKEY, Site
from tests.chaos.stranger import Stranger
from tests.mesh.harness import tell_to_stop

VALKEY_AWAY_S: Final = 1.0
"""Nobody but the test starts it again."""
SLOW: Final = Cable(megabits_per_s=4, delay_ms=50)


class Victim:
    """A process of a site, and the machine on which it is."""

    def __init__(self, site: Site, name: str, client_pid: int) -> None:
        """A part, the engine of one as "decode-0 engine", "valkey" or "client"."""
        self.site = site
        self.name = name
        self.part = name.removesuffix(" engine")
        self.line = site.network.line(self.part)
        if name == CLIENT:
            self.process = psutil.Process(client_pid)
        elif name == VALKEY:
            assert site.valkey is not None
            self.process = site.valkey.process
        else:
            self.process = site.mesh.parts()[self.part]
            if self.part != name:
                (self.process,) = self.process.children()


class Fault:
    """To be made beforehand, so that `begin` is quick; `end` is called once, however the request fares."""

    hold_s: float | None = 0.0
    """From the beginning to the end, or for as long as the request lasts when None."""

    def __init__(self, victim: Victim) -> None:
        self.victim = victim

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Undo what does not undo itself."""

    def wait_until_over(self) -> None:
        """Behind `end`: until nothing more of it is to come."""


class Kill(Fault):
    """SIGKILL."""

    def begin(self) -> None:
        self.victim.process.kill()

    def end(self) -> None:
        _start_valkey_again(self.victim)


class Freeze(Fault):
    """SIGSTOP: nothing is closed, and the kernel still takes what comes."""

    hold_s = 10.0

    def begin(self) -> None:
        self.victim.process.suspend()

    def end(self) -> None:
        # It may have been given up and ended meanwhile.
        with suppress(psutil.NoSuchProcess):
            self.victim.process.resume()


class Partition(Fault):
    """The machine's cable is pulled, and plugged in again."""

    hold_s = 5.0

    def begin(self) -> None:
        self.victim.line.cut()

    def end(self) -> None:
        self.victim.line.mend()


class SlowLink(Fault):
    """The machine's cable can carry only so much."""

    hold_s = None

    def begin(self) -> None:
        self.victim.line.slow_down(SLOW)

    def end(self) -> None:
        self.victim.line.speed_up()


class FullDisk(Fault):
    """The disk of its log is full; and somebody whom it knows is frozen, of which it has something to say."""

    hold_s = None

    def __init__(self, victim: Victim) -> None:
        super().__init__(victim)
        site = victim.site
        names = [victim.part, *(["access"] if victim.part == "gateway" else [])]
        self._disks = [site.disk(name) for name in names]
        kvstores = [name for name in site.parts if name.startswith("kvstore")]
        # Of a worker, a kvstore has something to say.
        other = PREFILL if victim.part in kvstores else kvstores[-1]
        self._other = site.mesh.parts()[other]

    def begin(self) -> None:
        for disk in self._disks:
            fill(disk)
        self._other.suspend()

    def end(self) -> None:
        self._other.resume()
        for disk in self._disks:
            make_room(disk)


class Restart(Fault):
    """SIGTERM; whoever starts in its place knows nothing of what it knew."""

    def begin(self) -> None:
        victim = self.victim
        if victim.name == VALKEY:
            victim.process.kill()
        else:
            tell_to_stop(victim.site.mesh, victim.part)

    def end(self) -> None:
        _start_valkey_again(self.victim)

    def wait_until_over(self) -> None:
        # It may take as long as it is given.
        _, alive = psutil.wait_procs([self.victim.process], timeout=30)
        assert not alive, f"{self.victim.name} does not stop"


class OtherModel(Fault):
    """A worker of the victim's role with other weights asks to be let in under the mesh's name."""

    hold_s = None

    def __init__(self, victim: Victim) -> None:
        super().__init__(victim)
        self._stranger = Stranger(victim.site, victim.part.partition("-")[0])

    def begin(self) -> None:
        self._stranger.start()

    def end(self) -> None:
        try:
            self._stranger.wait_until_refused()
        finally:
            self._stranger.close()


def _start_valkey_again(victim: Victim) -> None:
    if victim.name == VALKEY:
        valkey = victim.site.valkey
        assert valkey is not None
        valkey.kill()
        time.sleep(VALKEY_AWAY_S)
        valkey.start()


FAULTS: Final[dict[str, type[Fault]]] = {
    "kill -9": Kill,
    "SIGSTOP 10 s": Freeze,
    "partition": Partition,
    "slow link": SlowLink,
    "full disk": FullDisk,
    "restart": Restart,
    "wrong version": OtherModel,
}
