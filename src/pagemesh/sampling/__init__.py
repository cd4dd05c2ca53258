"""Choosing tokens: parameters, counter-based randomness, the sampler, log probabilities.

Knows logits and positions; it does not know models, blocks or requests beyond their ids. Only what
computes with logits loads torch (`sampler`, `logit_edits`, `scoring`); the rest is plain data, for the
scheduler and for processes that only pass parameters on.
"""
