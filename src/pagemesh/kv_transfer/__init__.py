"""KV between workers: a stream of messages, cut and checksummed by the sender, verified by the receiver.

`frames` is the wire format, `transports` what stands in it for the KV of a part. `sender` and `fetch` serve streams,
`importer` has them fill the blocks of a grant. All of it works on a `KvEndpoint`; nothing here knows what a worker's
role is, or what an engine computes.
"""
