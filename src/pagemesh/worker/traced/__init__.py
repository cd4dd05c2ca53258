"""Spans of a worker: each module wraps an interface from outside, and is left out where nobody records."""
