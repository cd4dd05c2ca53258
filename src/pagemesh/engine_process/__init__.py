"""The engine in a process of its own, so that gRPC and the engine share no GIL.

`client.RemoteEngine` is what a worker has: `core.engine.Engine` over a pipe. `server` is the process's main.
"""
