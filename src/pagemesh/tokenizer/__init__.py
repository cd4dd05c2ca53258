"""Text to token ids and back for one model folder: tokenizer, chat template, stop strings.

Owns everything that needs the tokenizer's files. Knows nothing of requests, workers or tensors, and
imports neither torch nor transformers; that its ids equal those of transformers is a test.
"""

from pagemesh.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer"]
