"""From settings to an engine that can start: on a CPU, or on a GPU.

`engine.load_engine` reads a model, finds the kernels that give every sequence its own bits in any company, reserves
the KV cache that the memory has room for, and computes the first steps. Whatever runs later is in `pagemesh.engine`.
"""
