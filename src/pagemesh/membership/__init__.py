"""Both ends of the kvstore as its peers see it: workers publish, routers watch and ask.

Owns connections to the kvstore, their reconnects and what is remembered while it is away. Knows
neither tensors nor text, and not how the kvstore keeps its state.
"""
