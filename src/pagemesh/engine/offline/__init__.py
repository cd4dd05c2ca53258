"""The engine without services: prompts in, answers out, in the process that asks.

Owns what users of `pagemesh.engine.LLM` see: prompts, sampling parameters, outputs, the progress bar.
The engine below is the one that workers run.
"""
