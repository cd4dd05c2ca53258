"""The engine: computes batch after batch, in a process of its own. Knows nothing of RPCs, roles and text.

`interface` is what services see; `remote` starts a process and talks to it, `process` is its other end.
Neither loads torch: in that process `loading.load_engine` does, which builds a real engine.
"""
