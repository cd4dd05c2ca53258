"""Who a process of the mesh is, as its certificate says, and which process may call what.

Knows certificates and names of methods; no grpc and no message of `pagemesh.v1`.
"""
