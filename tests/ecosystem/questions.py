"""What clients ask the demo model, and what it says each time."""

from typing import Final

QUESTION: Final = "What is the capital of France?"
ANSWER: Final = "The capital of France is Paris."
PLACE: Final = "What is the weather in Oslo?"
SKY: Final = "21 degrees and sunny"
REPORT: Final = "In Oslo it is 21 degrees and sunny."
"""Once a tool has told it the sky over Oslo."""
TEXTS: Final = ("Cats sleep all day.", "The train leaves at noon.", "Bread is baked from flour.")
WIDTH: Final = 256
"""Numbers of an embedding."""
