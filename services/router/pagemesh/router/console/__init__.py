"""What people look at: a page to chat with the mesh, and what the mesh does, live.

Knows routes, numbers and ids of workers; never a prompt, an answer, a tenant or a key.
"""
