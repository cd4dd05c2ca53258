"""The bytes of the paged KV cache, for everyone who moves blocks: `core.kv.KvAccess` without torch.

`memory` is shared memory of the host, `peer` maps that of another process, `staged` reaches the KV on a
device through pinned buffers.
"""
