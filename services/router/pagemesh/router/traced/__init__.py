"""Spans of the router: each module wraps an interface from outside, and is left out where nobody records."""
