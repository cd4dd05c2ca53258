"""The router: text in, text out, and which workers compute it.

Owns OpenAI semantics, tokenizing and detokenizing, admission, routing and the sessions to decode
workers. Knows no tensors: the process never imports torch or transformers.
"""
