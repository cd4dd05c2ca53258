"""The engine: a thread that computes batch after batch. Knows nothing of RPCs, roles and text.

`interface` is what services see and imports no torch; `loading.load_engine` builds a real engine.
"""
