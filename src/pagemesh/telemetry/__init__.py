"""Metrics and logs: every metric name in one place, structured logs with request ids.

Watches the other parts from outside; nothing here changes what they do.
"""
