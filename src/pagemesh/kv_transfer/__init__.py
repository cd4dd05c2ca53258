"""KV blocks as a stream of messages: cut and checksummed by the sender, verified by the receiver.

Knows blocks, their names, the memory that they lie in and the messages of `kv_transfer.proto`; knows neither
gRPC calls nor what an engine computes.
"""
