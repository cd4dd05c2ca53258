"""Decoders: what a model is (`spec`), which architectures are known (`registry`), weights, the forward pass.

Owns everything between a model folder and hidden states. It does not know requests, blocks or
sampling: a decoder reads and writes KV through the `ForwardContext` that its caller hands in.
"""
