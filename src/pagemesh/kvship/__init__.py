"""KV blocks as a stream of messages: cut and checksummed by the sender, verified by the receiver.

Knows blocks, hashes and the messages of `kv_transfer.proto`; knows neither gRPC calls nor engines.
"""
