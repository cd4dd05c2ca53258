"""Takes an answer's text apart into content, reasoning and tool calls, while it grows.

Knows texts; it does not know tokens, requests, HTTP bodies or workers.
"""
