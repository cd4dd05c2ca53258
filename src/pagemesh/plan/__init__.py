"""`pagemesh plan` for a whole deployment: the fewest workers that keep an SLO, and what stands around them.

Workers are counted by simulation with the router's own decisions; everything else follows from sums over measured
figures. Knows neither torch nor gRPC.
"""
