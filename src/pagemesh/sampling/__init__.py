"""Choosing tokens: parameters, counter-based randomness, the sampler, log probabilities.

Knows logits and positions; it does not know models, blocks or requests beyond their ids. `params`, `logprobs`,
`logits_rules` and `structured` are plain data without torch, for the scheduler and for processes that only pass
parameters on.
"""
