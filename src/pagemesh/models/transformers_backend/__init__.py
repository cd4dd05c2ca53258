"""Models of transformers over the paged KV cache, for decoder-only architectures that have no spec here.

The model's own code runs, layer by layer; only its attention, which transformers reaches through a
named interface, is replaced. What a model's attention needs is found out by watching it once.
"""
