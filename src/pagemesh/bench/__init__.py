"""`pagemesh bench`: how fast an endpoint, or a model in this process, answers. vLLM's names and definitions."""
