"""KV between the engines of two processes on one GPU: copied out of the other one's memory, and by buffers of the host."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from random_models import make_model

from gpu.probe import Probe
from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig, ServerConfig
from pagemesh.engine_process.client import EngineProcess, RemoteEngine
from pagemesh.engine_process.pipe import EngineSettings
from pagemesh.kv_memory.staged import StagedKv

MIB = 2**20
SIZES = (1 * MIB, 32 * MIB, 256 * MIB)
"""About a part on the wire, a prompt of a few hundred tokens, and one of some thousand."""

KV_CACHE_GIB = 1.0


def run(probe: Probe) -> None:
    """Each size in both ways."""
    probe.row("bytes, way", "GB/s", "ms")
    with _engine(probe) as sender, _engine(probe) as receiver:
        pair = _Pair(sender, receiver)
        probe.setting("bytes of a block", pair.block_bytes)
        for size in SIZES[:1] if probe.toy else SIZES:
            sources, targets = pair.choose(max(1, size // pair.block_bytes))
            for name, copy in pair.ways(sources, targets).items():
                if not probe.has_time(2.0):
                    return
                with probe.case(f"{size // MIB} MiB, {name}"):
                    _measure(probe, f"{size // MIB} MiB, {name}", pair, (sources, targets), copy)


class _Pair:
    """Two engines, of which the second one gets what the first one has."""

    def __init__(self, sender: RemoteEngine, receiver: RemoteEngine) -> None:
        self._sender = sender
        self._receiver = receiver
        self._layers = 0, sender.info.layout.num_layers
        self._random = random.Random(7)

    @property
    def block_bytes(self) -> int:
        """Of a block in all layers."""
        return self._sender.info.layout.num_bytes

    def choose(self, num_blocks: int) -> tuple[list[int], list[int]]:
        """Blocks of both, in no order; those of the sender are filled."""
        there = range(self._sender.info.num_blocks), range(self._receiver.info.num_blocks)
        sources, targets = (self._random.sample(each, num_blocks) for each in there)
        size = num_blocks * self.block_bytes
        self._sender.kv.write(sources, *self._layers, self._random.randbytes(size))
        return sources, targets

    def ways(
        self, sources: Sequence[int], targets: Sequence[int]
    ) -> dict[str, Callable[[], object]]:
        """By name, what copies them; out of the other one's memory only where a device has it."""
        theirs, ours = self._sender.kv, self._receiver.kv
        held = memoryview(bytearray(len(sources) * self.block_bytes))

        def by_host() -> None:
            theirs.read(sources, *self._layers, held)
            ours.write(targets, *self._layers, held)

        found: dict[str, Callable[[], object]] = {"by the host": by_host}
        if isinstance(theirs, StagedKv) and isinstance(ours, StagedKv) and theirs.name is not None:
            name, copy_from = theirs.name, ours.copy_from
            found["device copy"] = lambda: copy_from(name, sources, targets, *self._layers)
        return found

    def check(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """RuntimeError unless both have the same bytes."""
        size = len(sources) * self.block_bytes
        sent, got = bytearray(size), bytearray(size)
        self._sender.kv.read(sources, *self._layers, memoryview(sent))
        self._receiver.kv.read(targets, *self._layers, memoryview(got))
        if sent != got:
            raise RuntimeError("what came is not what was sent")


def _measure(
    probe: Probe,
    name: str,
    pair: _Pair,
    blocks: tuple[Sequence[int], Sequence[int]],
    copy: Callable[[], object],
) -> None:
    copy()
    pair.check(*blocks)
    seconds = []
    for _ in range(probe.num_rounds):
        started_at = time.perf_counter()
        copy()
        seconds.append(time.perf_counter() - started_at)
    num_bytes = len(blocks[0]) * pair.block_bytes
    # Each byte is read once and written once, as in the limit of copies.
    rate = probe.figure(name, "GB/s", [2 * num_bytes / 1e9 / each for each in seconds])
    probe.row(name, f"{rate:.1f}", f"{2 * num_bytes / 1e6 / rate:.3f}")


@contextmanager
def _engine(probe: Probe) -> Iterator[RemoteEngine]:
    settings = EngineSettings(
        ModelConfig(str(make_model("10M" if probe.toy else "1B")), max_model_len=256),
        CacheConfig(kv_cache_memory=0.05 if probe.toy else KV_CACHE_GIB),
        SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64),
        ServerConfig(),
        "decode",
        HardwareConfig("cpu" if probe.toy else "cuda", enforce_eager=True),
    )
    engine = EngineProcess(settings).connect()
    try:
        yield engine
    finally:
        engine.stop()
