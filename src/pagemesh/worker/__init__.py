"""What prefill and decode workers have in common: one engine, its steps, its process; KV to and from others.

Knows the engine's interface and the membership of the mesh; does not know which RPCs a role serves.
"""
