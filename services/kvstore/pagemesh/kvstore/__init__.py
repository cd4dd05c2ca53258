"""The kvstore: which worker holds which KV block, who is in the mesh, and how busy they are.

Owns soft state only: all of it can be rebuilt from the workers. Knows neither tokens nor tensors.
"""
