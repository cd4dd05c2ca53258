"""Answers that begin with a short thought between <think> tags."""

from random import Random

from demo_corpus import arithmetic, geography, rewriting
from demo_corpus.exchange import Exchange


def _sum(rng: Random) -> Exchange:
    a, b = rng.randint(0, 20), rng.randint(0, 20)
    if rng.random() < 0.6 or b > a:
        made = arithmetic.ask_sum(rng, a, b)
        return _thinking(made, f"{a} + {b}: {a} and {b} more make {a + b}.")
    made = arithmetic.ask_difference(rng, a, b)
    return _thinking(made, f"{a} - {b}: {b} less than {a} is {a - b}.")


def _thinking(made: Exchange, thought: str) -> Exchange:
    return made._replace(answer=f"<think>\n{thought}\n</think>\n\n{made.answer}", brief="")


def thought(rng: Random) -> Exchange:
    """A question whose answer is worth a thought."""
    choice = rng.random()
    if choice < 0.5:
        return _sum(rng)
    if choice < 0.8:
        made = geography.capital(rng)
        return _thinking(made, f"This asks for a capital. I know it: {made.brief}.")
    topic = rng.choice((rewriting.plural, rewriting.opposite, rewriting.past_tense))
    made = topic(rng)
    return _thinking(made, f"This asks for a word. I know it: {made.brief.lower()}.")
