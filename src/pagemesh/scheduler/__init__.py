"""Decides what every engine step computes. Knows token ids and block ids, no tensors and no RPCs."""
