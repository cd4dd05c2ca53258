"""The names that real blocks had, for a simulation of the same requests."""

from __future__ import annotations

from collections.abc import Sequence

from simcheck.replay import Replayed

from pagemesh.cache.block_hash import hash_blocks, root_hash
from pagemesh.sim.trace import Namer, Trace
from pagemesh.v1 import types_pb2


def real_names(trace: Trace, real: Sequence[Replayed], worker: types_pb2.WorkerInfo) -> Namer:
    """The names that the real blocks had: who meets whom by hashing is the same then."""
    layout = worker.kv_layout
    root = root_hash(
        worker.model_fingerprint, layout.block_size, layout.dtype, arithmetic=worker.arithmetic
    )
    names = {}
    for request, one in zip(trace, real, strict=True):
        # Of who was refused, nobody knows an answer; it is like no other one's all the same, behind that prompt.
        unknown = [0] * (request.num_total_tokens - len(one.token_ids))
        names[request] = hash_blocks(root, [*one.token_ids, *unknown], layout.block_size)
    return lambda request, num_blocks: names[request][:num_blocks]
