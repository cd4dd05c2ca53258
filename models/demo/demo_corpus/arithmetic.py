"""Small sums, differences, products, comparisons, and stories about apples."""

from random import Random

from demo_corpus.exchange import Exchange, words

_WORDS = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty"
)

_PLUS = (
    "What is {a} + {b}?",
    "What is {a} + {b}?",
    "{a} + {b}",
    "{a}+{b}",
    "{a} + {b} =",
    "{a}+{b}=?",
    "What is {a} plus {b}?",
    "What's {a} plus {b}?",
    "{a} plus {b}",
    "How much is {a} + {b}?",
    "How much is {a} plus {b}?",
    "Add {a} and {b}.",
    "Calculate {a} + {b}.",
    "What is the sum of {a} and {b}?",
    "Can you add {a} and {b}?",
    "Please compute {a} + {b}.",
)
_MINUS = (
    "What is {a} - {b}?",
    "What is {a} - {b}?",
    "{a} - {b}",
    "{a}-{b}=?",
    "{a} - {b} =",
    "What is {a} minus {b}?",
    "{a} minus {b}",
    "How much is {a} - {b}?",
    "How much is {a} minus {b}?",
    "Subtract {b} from {a}.",
    "Calculate {a} - {b}.",
    "Please compute {a} - {b}.",
)
_TIMES = (
    "What is {a} * {b}?",
    "What is {a} x {b}?",
    "{a} * {b}",
    "{a} x {b}",
    "{a} * {b} =",
    "What is {a} times {b}?",
    "What's {a} times {b}?",
    "{a} times {b}",
    "How much is {a} times {b}?",
    "Multiply {a} by {b}.",
    "Calculate {a} * {b}.",
    "What is the product of {a} and {b}?",
)
_THINGS = words("apples books coins cookies eggs flowers pencils stones cards balls")


def _spelled(rng: Random, number: int) -> str:
    """The number as digits, now and then as a word."""
    return _WORDS[number] if number <= 20 and rng.random() < 0.5 else str(number)


def _ask(rng: Random, templates: tuple[str, ...], a: int, b: int) -> str:
    template = rng.choice(templates)
    wordy = all(sign not in template for sign in "+-*=") and " x " not in template
    if wordy and rng.random() < 0.25:
        return template.format(a=_spelled(rng, a), b=_spelled(rng, b))
    return template.format(a=a, b=b)


def ask_sum(rng: Random, a: int, b: int) -> Exchange:
    """This sum in some words."""
    return Exchange(_ask(rng, _PLUS, a, b), f"{a} + {b} = {a + b}.", str(a + b))


def ask_difference(rng: Random, a: int, b: int) -> Exchange:
    """This difference in some words."""
    return Exchange(_ask(rng, _MINUS, a, b), f"{a} - {b} = {a - b}.", str(a - b))


def addition(rng: Random) -> Exchange:
    """Mostly the table up to 20 + 20, now and then larger numbers."""
    if rng.random() < 0.93:
        a, b = rng.randint(0, 20), rng.randint(0, 20)
    else:
        a, b = rng.randint(0, 60), rng.randint(0, 39)
    return ask_sum(rng, a, b)


def subtraction(rng: Random) -> Exchange:
    """Never below zero."""
    a = rng.randint(0, 20) if rng.random() < 0.93 else rng.randint(20, 40)
    b = rng.randint(0, min(a, 20))
    return ask_difference(rng, a, b)


def multiplication(rng: Random) -> Exchange:
    """The table up to 10 * 10."""
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    return Exchange(_ask(rng, _TIMES, a, b), f"{a} * {b} = {a * b}.", str(a * b))


def comparison(rng: Random) -> Exchange:
    """Which of two numbers is bigger or smaller."""
    a, b = rng.sample(range(51), 2)
    low, high = min(a, b), max(a, b)
    if rng.random() < 0.5:
        word = rng.choice(("bigger", "larger", "greater"))
        question = f"Which is {word}, {a} or {b}?"
        return Exchange(question, f"{high} is bigger than {low}.", str(high))
    question = f"Which is {rng.choice(('smaller', 'less'))}, {a} or {b}?"
    return Exchange(question, f"{low} is smaller than {high}.", str(low))


def story_sum(rng: Random) -> Exchange:
    """A sum told as a story about things gained or lost."""
    thing = rng.choice(_THINGS)
    a = rng.randint(2, 20)
    if rng.random() < 0.5:
        b = rng.randint(2, 20)
        more = rng.choice(("buy", "find", "get"))
        question = f"I have {a} {thing} and {more} {b} more. How many {thing} do I have now?"
        return Exchange(question, f"{a} + {b} = {a + b}, so you have {a + b} {thing}.", str(a + b))
    b = rng.randint(1, a - 1)
    away = rng.choice(("give away", "lose", "sell"))
    question = f"I have {a} {thing} and {away} {b}. How many {thing} are left?"
    return Exchange(question, f"{a} - {b} = {a - b}, so {a - b} {thing} are left.", str(a - b))


def statement(rng: Random) -> str:
    """Lines such as `3 + 4 = 7`, for the completions route, and the densest way to practise."""
    makers = (addition, addition, subtraction, subtraction, multiplication)
    made = (rng.choice(makers)(rng).answer for _ in range(rng.choice((1, 4, 8))))
    return "\n".join(answer.removesuffix(".") for answer in made)
