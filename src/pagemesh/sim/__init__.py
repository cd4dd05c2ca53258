"""`pagemesh sim`: a discrete-event simulation of a mesh that routes with the router's own code.

Policies, predictions, the router's books of what is in flight, the block index and the block pool are those
of the services; engines, links and clients are modelled. Knows neither torch nor gRPC.
"""
