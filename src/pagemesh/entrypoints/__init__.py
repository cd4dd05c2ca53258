"""Servers by the names of modules that vLLM's guides start."""
