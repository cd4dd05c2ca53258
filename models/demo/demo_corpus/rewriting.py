"""Simple rewriting: case, copying, order, spelling, plural, opposite, past tense."""

from random import Random

from demo_corpus.exchange import Exchange, sentence_case
from demo_corpus.words import ANY, COMMON, OPPOSITES, PAST_TENSES, PLURALS


def _some_words(rng: Random, table: tuple[str, ...], least: int, most: int) -> str:
    return " ".join(rng.choice(table) for _ in range(rng.randint(least, most)))


def upper(rng: Random) -> Exchange:
    """To capital letters."""
    word = rng.choice(COMMON) if rng.random() < 0.75 else _some_words(rng, COMMON, 2, 3)
    question = rng.choice(
        (
            "Write {} in uppercase.",
            "Write the word {} in uppercase.",
            "Write {} in capital letters.",
            "Put {} in uppercase.",
            "Uppercase: {}",
            "Make {} uppercase.",
            "Convert {} to uppercase.",
            "What is {} in uppercase?",
            "What is {} in capital letters?",
            "Change {} to uppercase.",
        )
    ).format(word)
    return Exchange(question, word.upper())


def lower(rng: Random) -> Exchange:
    """To small letters."""
    word = rng.choice(COMMON) if rng.random() < 0.75 else _some_words(rng, COMMON, 2, 3)
    question = rng.choice(
        (
            "Write {} in lowercase.",
            "Write the word {} in lowercase.",
            "Write {} in small letters.",
            "Put {} in lowercase.",
            "Lowercase: {}",
            "Make {} lowercase.",
            "Convert {} to lowercase.",
            "What is {} in lowercase?",
            "Change {} to lowercase.",
        )
    ).format(word.upper() if rng.random() < 0.8 else word.title())
    return Exchange(question, word)


def repeat(rng: Random) -> Exchange:
    """The same words again."""
    words = _some_words(rng, ANY, 1, 8)
    question = rng.choice(
        (
            "Repeat after me: {}",
            "Repeat: {}",
            "Say {}",
            "Say: {}",
            "Please repeat this: {}",
            "Copy this: {}",
            "Write exactly this: {}",
            "Repeat the following words: {}",
        )
    ).format(words)
    return Exchange(question, words)


def repeat_times(rng: Random) -> Exchange:
    """One word several times."""
    word = rng.choice(ANY)
    spelled = ("two", "three", "four", "five")
    count = rng.randint(2, 5)
    number = rng.choice((str(count), spelled[count - 2]))
    question = rng.choice(
        ("Say {w} {n} times.", "Write {w} {n} times.", "Repeat the word {w} {n} times.")
    ).format(w=word, n=number)
    return Exchange(question, " ".join([word] * count))


def backwards(rng: Random) -> Exchange:
    """The same words in reverse order."""
    words = _some_words(rng, ANY, 2, 4)
    question = rng.choice(
        (
            "Say {} in backwards word order.",
            "Write {} in reverse word order.",
            "Reverse the words: {}",
            "Reverse the order of the words: {}",
            "Say these words backwards: {}",
        )
    ).format(words)
    return Exchange(question, " ".join(reversed(words.split())))


def spell(rng: Random) -> Exchange:
    """A word letter by letter."""
    word = rng.choice(COMMON)
    question = rng.choice(
        (
            "Spell {}.",
            "Spell the word {}.",
            "How do you spell {}?",
            "How is {} spelled?",
            "Can you spell {}?",
            "What are the letters of {}?",
        )
    ).format(word)
    return Exchange(question, "-".join(word))


def first_letter(rng: Random) -> Exchange:
    """The first or the last letter of a word."""
    word = rng.choice(COMMON)
    which = rng.choice(("first", "last"))
    question = rng.choice(
        ("What is the {} letter of {}?", "Which letter is the {} letter of {}?")
    ).format(which, word)
    letter = word[0] if which == "first" else word[-1]
    return Exchange(question, f"The {which} letter of {word} is {letter}.", letter)


def plural(rng: Random) -> Exchange:
    """One to many."""
    one, many = rng.choice(PLURALS)
    question = rng.choice(
        (
            "What is the plural of {}?",
            "What's the plural of {}?",
            "plural of {}",
            "Give me the plural of {}.",
            "Tell me the plural of {}.",
            "Write the plural of {}.",
            "One {}, two what?",
            "What is the plural form of {}?",
        )
    ).format(one)
    return Exchange(question, f"The plural of {one} is {many}.", sentence_case(many))


def opposite(rng: Random) -> Exchange:
    """A word and its opposite."""
    left, right = rng.choice(OPPOSITES)
    question = rng.choice(
        (
            "What is the opposite of {}?",
            "What's the opposite of {}?",
            "opposite of {}",
            "Give me the opposite of {}.",
            "Tell me the opposite of {}.",
            "Name the opposite of {}.",
            "Which word is the opposite of {}?",
            "Which word means the opposite of {}?",
        )
    ).format(left)
    return Exchange(question, f"The opposite of {left} is {right}.", sentence_case(right))


def past_tense(rng: Random) -> Exchange:
    """Today and yesterday."""
    now, then = rng.choice(PAST_TENSES)
    question = rng.choice(
        (
            "What is the past tense of {}?",
            "What's the past tense of {}?",
            "past tense of {}",
            "Give me the past tense of {}.",
            "Tell me the past tense of {}.",
            "Put {} into the past tense.",
            "Write {} in the past tense.",
            "Today I {}. Yesterday I what?",
        )
    ).format(now)
    return Exchange(question, f"The past tense of {now} is {then}.", sentence_case(then))


def statement(rng: Random) -> str:
    """A sentence about a word, for the completions route."""
    return rng.choice((plural, opposite, past_tense))(rng).answer
