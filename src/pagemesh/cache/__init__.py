"""Names of KV blocks and the pool that hands them out. Knows ids and hashes, no tensors and no RPCs."""
