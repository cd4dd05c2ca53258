"""OpenAI's wire format: bodies in, bodies and server-sent events out, errors.

Pure translation between bytes and the router's own nouns. Knows nothing of gRPC, workers or routing.
"""
