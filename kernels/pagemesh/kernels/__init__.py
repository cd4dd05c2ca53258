"""Tensor operations over paged KV, one folder per operation.

`reference.py` in each is the plain float32 definition; the folder's `__init__` checks and dispatches.
Knows shapes and block tables; it does not know models, requests or the scheduler.
"""
