"""The training text of the demo model: made by rules, from a seed, without any download."""

from demo_corpus.exchange import Exchange, Message, Tool
from demo_corpus.mix import Corpus, Document, normalised

__all__ = ["Corpus", "Document", "Exchange", "Message", "Tool", "normalised"]
