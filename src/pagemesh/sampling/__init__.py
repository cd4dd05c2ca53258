"""Choosing tokens: parameters, counter-based randomness, the sampler.

Knows logits and positions; it does not know models, blocks or requests beyond their ids. `params` is
free of torch, for the processes that only pass parameters on.
"""
