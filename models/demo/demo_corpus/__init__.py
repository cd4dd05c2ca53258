"""The training text of the demo model: made by rules, from a seed, without any download."""

from demo_corpus.exchange import Exchange
from demo_corpus.mix import Corpus, Document, Message, normalised

__all__ = ["Corpus", "Document", "Exchange", "Message", "normalised"]
