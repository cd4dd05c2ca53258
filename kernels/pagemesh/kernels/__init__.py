"""Tensor operations over paged KV, one folder per operation.

`interface.py` in each has the checks and the plain float32 definition, or `reference.py` has where it is long; the
folder's `__init__` dispatches.
Knows shapes and block tables; it does not know models, requests or the scheduler.
"""
