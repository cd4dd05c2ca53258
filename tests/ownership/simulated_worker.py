"""One incarnation of a worker without a process: a scheduler, its fake device and the ledger of its leases."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from pagemesh.cache.block_hash import hash_blocks, root_hash
from pagemesh.core.engine import EngineInfo
from pagemesh.core.kv import KvGrant
from pagemesh.core.request import EngineRequest
from tests.ownership.ledger import CheckedRunner, Ledger
from tests.unit.scheduler.builders import Device, FixedGrowth, FixedWay, Stepper

_lease_numbers = count()


def import_lease(request_id: str) -> str:
    """The name of a grant, whose request may have a lease as an export as well."""
    return f"import of {request_id}"


class SimulatedWorker:
    """Everything that is asked of it happens between two steps, as an engine's commands do."""

    def __init__(
        self, info: EngineInfo, budget: int, device: Device, num_swap_blocks: int, growth: int
    ) -> None:
        self.stepper = Stepper(
            info,
            max_num_batched_tokens=budget,
            num_swap_blocks=num_swap_blocks,
            preemption=FixedWay(True, False),
            forecast=FixedGrowth(growth),
            device=device,
        )
        self.ledger = Ledger(info.layout.block_size)
        self.stepper.runner = CheckedRunner(self.stepper.kv, self.ledger, num_swap_blocks)
        self.stepper.on_delivery = self._note_leases
        self.is_alive = True
        self._leases: set[str] = set()
        """Exports, granted imports and pins whose holders have not given them up."""
        self._granted: set[str] = set()

    def submit(self, spec: EngineRequest) -> None:
        if spec.hold_blocks:
            self._leases.add(spec.request_id)
        self.stepper.submit(spec)
        self._after_command()

    def cancel(self, request_id: str) -> None:
        self.stepper.requests.cancel(request_id)
        self._after_command()

    def first_token(self, request_id: str, token_id: int) -> None:
        self.stepper.requests.first_token(request_id, token_id)
        self._after_command()

    def finish_import(self, request_id: str, num_valid_tokens: int) -> None:
        self._give_up(import_lease(request_id))
        self.stepper.requests.finish_import(request_id, num_valid_tokens)
        self._after_command()

    def release(self, lease: str) -> None:
        self._give_up(lease)
        self.stepper.requests.release(lease)
        self._after_command()

    def pin(self, prompt: Sequence[int], num_held_tokens: int) -> tuple[str, tuple[int, ...]]:
        """The lease and the cached blocks behind the held ones, from the first on."""
        layout = self.stepper.info.layout
        names = hash_blocks(
            root_hash("fake", layout.block_size, layout.dtype), prompt, layout.block_size
        )
        lease = f"pin-{next(_lease_numbers)}"
        block_ids = self.stepper.requests.pin(lease, names[num_held_tokens // layout.block_size :])
        self._leases.add(lease)
        self.ledger.lend(lease, block_ids, len(block_ids) * layout.block_size)
        self._after_command()
        return lease, block_ids

    def step(self) -> bool:
        """Whether anything was computed, or is to be."""
        was_in_flight = self.stepper.in_flight is not None
        computed = bool(self.stepper.step())
        self._note_leases()
        return computed or was_in_flight

    def grant(self, request_id: str) -> KvGrant | None:
        """What an import was granted, as soon as it was."""
        return self.stepper.grants.get(request_id)

    def is_over(self, request_id: str) -> bool:
        return request_id in self.stepper.ends

    def check_free(self) -> None:
        """Nobody asks anything any more, and nothing is left."""
        assert not self._leases, f"leases that nobody gave up: {self._leases}"
        load = self.stepper.scheduler.load()
        assert load.num_free_blocks == self.stepper.info.num_blocks, "blocks are lost"
        assert (load.num_running, load.num_waiting) == (0, 0), "requests are left"
        for request_id, ends in self.stepper.ends.items():
            assert len(ends) == 1, f"{request_id} ended {len(ends)} times"

    def _after_command(self) -> None:
        self.stepper.collect()
        self._note_leases()

    def _give_up(self, lease: str) -> None:
        assert lease in self._leases, f"{lease} is given up twice"
        self._leases.discard(lease)
        self.ledger.end(lease)

    def _note_leases(self) -> None:
        stepper, block_size = self.stepper, self.stepper.info.layout.block_size
        for request_id in stepper.grants.keys() - self._granted:
            grant, lease = stepper.grants[request_id], import_lease(request_id)
            self._granted.add(request_id)
            self._leases.add(lease)
            self.ledger.grant(lease, grant.block_ids[grant.num_held_tokens // block_size :])
        for lease in self._leases:
            if lease in stepper.progress:
                num_tokens = stepper.progress[lease][-1].num_tokens
                self.ledger.lend(lease, stepper.exports[lease].block_ids, num_tokens)
        pool = stepper.scheduler._pool
        self.ledger.check_free((*pool._free_uncached, *pool._free_cached))
