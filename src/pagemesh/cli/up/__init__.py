"""`pagemesh up`: plans a whole mesh on this machine, starts its processes, keeps them up, ends them.

Knows the parts only by their command lines, health checks and exit codes; never imports torch.
"""
