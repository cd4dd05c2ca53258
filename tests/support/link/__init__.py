"""A link between two workers that can be told to go wrong: a process of its own, for tests of faults."""
