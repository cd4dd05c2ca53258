"""The prefill worker: computes the KV of prompts by chunked prefill and sends it while it is computed.

Knows neither clients nor text, and nothing of what becomes of the KV.
"""
