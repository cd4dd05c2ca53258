"""Structured output: what a request asks for, grammars compiled from it, and masks of allowed tokens.

Knows texts, token ids and bits; it does not know logits, requests or batches. Nothing here loads torch,
and the grammar library is loaded when the first grammar is compiled.
"""
