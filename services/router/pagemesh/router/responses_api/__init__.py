"""OpenAI's Responses API: bodies in, response objects and server-sent events out.

Pure translation to and from a chat request and what becomes known of its answer. Nothing is stored.
"""
