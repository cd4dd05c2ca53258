"""What processes on one machine need of each other: to die with a parent, to be a container's first
one, and HTTP over unix sockets.

The standard library alone: programs that stay beside others for as long as these run are made of it.
"""
