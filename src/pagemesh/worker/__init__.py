"""What prefill and decode workers have in common: one engine, its steps, its process, its place in the mesh.

Knows the engine's interface and the membership of the mesh; does not know which RPCs a role serves.
"""
