"""A name for "the same model", so that only workers that compute the same KV exchange it.

Sampling the weights instead of reading them all keeps it in the milliseconds for checkpoints of
hundreds of gigabytes; different trainings differ in practically every sampled block.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

from pagemesh.models.checkpoint import Checkpoint

# Names how the decoder lays out keys and values; a change makes old and new workers incompatible.
_KV_FORMAT = "rope-pairs-1"
_SAMPLE_BYTES = 4096


def fingerprint(
    facts: Mapping[str, Any], dtype: str, checkpoint: Checkpoint, tensor_names: Iterable[str]
) -> str:
    """Hex BLAKE2b-128 over architecture, type, and the named tensors' headers and sampled bytes.

    `facts` say what the weights are weights of, in values that JSON knows.
    The first and last 4 KiB of every tensor count; how the tensors are spread over files does not.
    """
    digest = blake2b(digest_size=16, person=b"pagemesh-model")
    named = {"kv_format": _KV_FORMAT, "dtype": dtype, **facts}
    digest.update(json.dumps(named, sort_keys=True).encode())
    entries = sorted((name, checkpoint.entries[name]) for name in tensor_names)
    by_file = sorted(entries, key=lambda item: (item[1].path, item[1].begin))
    samples: dict[str, bytes] = {}
    for path in dict.fromkeys(entry.path for _, entry in by_file):
        with path.open("rb") as file:
            for name, entry in by_file:
                if entry.path == path:
                    file.seek(entry.begin)
                    head = file.read(min(_SAMPLE_BYTES, entry.end - entry.begin))
                    file.seek(max(entry.begin, entry.end - _SAMPLE_BYTES))
                    samples[name] = head + file.read(min(_SAMPLE_BYTES, entry.end - entry.begin))
    for name, entry in entries:
        digest.update(json.dumps([name, entry.dtype, entry.shape]).encode())
        digest.update(samples[name])
    return digest.hexdigest()
