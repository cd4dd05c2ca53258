"""Anthropic's Messages API: bodies in, messages and server-sent events out, errors.

Pure translation to and from a chat request and what becomes known of its answer.
"""
