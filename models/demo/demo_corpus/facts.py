"""Days, months, colours, animals and other things that everybody knows."""

from random import Random

from demo_corpus.exchange import Exchange, sentence_case, words

DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words(
    "January February March April May June July August September October November December"
)
_ORDINALS = words(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
)

_COLOURS = (
    ("the sky", "blue"), ("grass", "green"), ("snow", "white"), ("the sun", "yellow"),
    ("blood", "red"), ("coal", "black"), ("a banana", "yellow"), ("a tomato", "red"),
    ("an orange", "orange"), ("chocolate", "brown"), ("milk", "white"), ("a leaf", "green"),
    ("a lemon", "yellow"), ("a cherry", "red"), ("the night", "black"), ("the sea", "blue"),
)  # fmt: skip
_SOUNDS = (
    ("dog", "barks"), ("cat", "meows"), ("cow", "moos"), ("sheep", "bleats"), ("duck", "quacks"),
    ("lion", "roars"), ("bee", "buzzes"), ("snake", "hisses"), ("horse", "neighs"),
    ("pig", "oinks"), ("wolf", "howls"), ("frog", "croaks"), ("owl", "hoots"), ("bird", "sings"),
)  # fmt: skip
_LEGS = (
    ("dog", "four"), ("cat", "four"), ("horse", "four"), ("cow", "four"), ("bird", "two"),
    ("spider", "eight"), ("ant", "six"), ("bee", "six"), ("snake", "no"), ("fish", "no"),
    ("human", "two"), ("chicken", "two"), ("frog", "four"), ("elephant", "four"),
)  # fmt: skip
_YOUNG = (
    ("dog", "puppy"), ("cat", "kitten"), ("cow", "calf"), ("horse", "foal"), ("sheep", "lamb"),
    ("pig", "piglet"), ("duck", "duckling"), ("chicken", "chick"), ("lion", "cub"),
    ("goose", "gosling"), ("frog", "tadpole"), ("bear", "cub"),
)  # fmt: skip
_ANSWERS: tuple[tuple[str, str], ...] = (
    ("How many days are in a week?", "A week has seven days."),
    ("How many days does a week have?", "A week has seven days."),
    ("How many months are in a year?", "A year has twelve months."),
    ("How many months does a year have?", "A year has twelve months."),
    ("How many days are in a year?", "A year has 365 days, and a leap year has 366."),
    ("How many hours are in a day?", "A day has 24 hours."),
    ("How many hours does a day have?", "A day has 24 hours."),
    ("How many minutes are in an hour?", "An hour has 60 minutes."),
    ("How many seconds are in a minute?", "A minute has 60 seconds."),
    ("How many weeks are in a year?", "A year has 52 weeks."),
    ("How many seasons are there?", "There are four seasons: spring, summer, autumn and winter."),
    ("Name the seasons.", "There are four seasons: spring, summer, autumn and winter."),
    ("How many continents are there?", "There are seven continents."),
    ("How many planets are there?", "There are eight planets in the solar system."),
    ("Which planet do we live on?", "We live on the planet Earth."),
    ("What is the largest planet?", "The largest planet is Jupiter."),
    ("What is the smallest planet?", "The smallest planet is Mercury."),
    ("Which planet is closest to the sun?", "Mercury is the planet closest to the sun."),
    ("What is the largest ocean?", "The largest ocean is the Pacific Ocean."),
    ("What is the highest mountain?", "The highest mountain is Mount Everest."),
    ("What is the largest animal?", "The largest animal is the blue whale."),
    ("What is the fastest land animal?", "The fastest land animal is the cheetah."),
    ("What is the tallest animal?", "The tallest animal is the giraffe."),
    ("What is water made of?", "Water is made of hydrogen and oxygen."),
    ("At what temperature does water boil?", "Water boils at 100 degrees Celsius."),
    ("At what temperature does water freeze?", "Water freezes at 0 degrees Celsius."),
    ("What do bees make?", "Bees make honey."),
    ("What do cows give us?", "Cows give us milk."),
    ("Where do fish live?", "Fish live in water."),
    ("What shines at night?", "The moon and the stars shine at night."),
    ("What is the sun?", "The sun is a star."),
    ("What is the moon?", "The moon is a ball of rock that moves around the Earth."),
    ("How many letters are in the alphabet?", "The English alphabet has 26 letters."),
    ("What is the first letter of the alphabet?", "The first letter of the alphabet is A."),
    ("What is the last letter of the alphabet?", "The last letter of the alphabet is Z."),
    ("What are the primary colours?", "The primary colours are red, yellow and blue."),
    ("Name the days of the week.", "The days of the week are " + ", ".join(DAYS) + "."),
    ("List the days of the week.", "The days of the week are " + ", ".join(DAYS) + "."),
    ("Name the months of the year.", "The months of the year are " + ", ".join(MONTHS) + "."),
    ("List the months of the year.", "The months of the year are " + ", ".join(MONTHS) + "."),
    ("Name the planets.", "The planets are Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus "
     "and Neptune."),
    ("Name the continents.", "The continents are Africa, Antarctica, Asia, Australia, Europe, "
     "North America and South America."),
    ("How many legs does a table have?", "A table has four legs."),
    ("How many wheels does a car have?", "A car has four wheels."),
    ("How many wheels does a bicycle have?", "A bicycle has two wheels."),
    ("How many fingers are on a hand?", "A hand has five fingers."),
    ("How many sides does a triangle have?", "A triangle has three sides."),
    ("How many sides does a square have?", "A square has four sides."),
    ("How many bits are in a byte?", "A byte has 8 bits."),
)  # fmt: skip


def _with_article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeio" else f"a {noun}"


def calendar(rng: Random) -> Exchange:
    """Days and months: what comes before, after, and at which place."""
    names, kind = rng.choice(((DAYS, "day"), (MONTHS, "month")))
    index = rng.randrange(len(names))
    name = names[index]
    shape = rng.randrange(4)
    if shape == 0:
        after = names[(index + 1) % len(names)]
        question = rng.choice(
            (f"Which {kind} comes after {name}?", f"What {kind} comes after {name}?",
             f"What {kind} is after {name}?", f"Which {kind} follows {name}?")
        )  # fmt: skip
        return Exchange(question, f"The {kind} after {name} is {after}.", after)
    if shape == 1:
        before = names[index - 1]
        question = rng.choice(
            (f"Which {kind} comes before {name}?", f"What {kind} comes before {name}?",
             f"What {kind} is before {name}?")
        )  # fmt: skip
        return Exchange(question, f"The {kind} before {name} is {before}.", before)
    if shape == 2 and kind == "day":
        question = rng.choice((f"If today is {name}, what day is tomorrow?",
                               f"Today is {name}. What day is tomorrow?"))  # fmt: skip
        after = names[(index + 1) % len(names)]
        return Exchange(question, f"If today is {name}, tomorrow is {after}.", after)
    whole = "week" if kind == "day" else "year"
    question = rng.choice(
        (f"What is the {_ORDINALS[index]} {kind} of the {whole}?",
         f"Which {kind} is the {_ORDINALS[index]} {kind} of the {whole}?")
    )  # fmt: skip
    return Exchange(question, f"The {_ORDINALS[index]} {kind} of the {whole} is {name}.", name)


def everyday(rng: Random) -> Exchange:
    """Colours, sounds, legs, young animals and a table of common facts."""
    shape = rng.randrange(6)
    if shape == 0:
        thing, colour = rng.choice(_COLOURS)
        ask = rng.choice(("What colour is {}?", "What color is {}?", "Which colour is {}?",
                          "What is the colour of {}?", "Which color does {} have?"))  # fmt: skip
        return Exchange(ask.format(thing), sentence_case(f"{thing} is {colour}."), colour.title())
    if shape == 1:
        animal, sound = rng.choice(_SOUNDS)
        ask = rng.choice(("What sound does {} make?", "What noise does {} make?",
                          "What does {} say?"))  # fmt: skip
        kind = _with_article(animal)
        return Exchange(ask.format(kind), sentence_case(f"{kind} {sound}."))
    if shape == 2:
        animal, legs = rng.choice(_LEGS)
        kind = _with_article(animal)
        ask = rng.choice(("How many legs does {} have?", "How many legs has {}?"))
        answer = sentence_case(f"{kind} has {legs} legs.")
        return Exchange(ask.format(kind), answer, legs.title())
    if shape == 3:
        animal, young = rng.choice(_YOUNG)
        ask = rng.choice(
            (
                "What is a young {} called?",
                "What is a baby {} called?",
                "What do you call a baby {}?",
                "What do you call a young {}?",
            )
        )
        return Exchange(ask.format(animal), f"A young {animal} is called a {young}.", young.title())
    question, answer = rng.choice(_ANSWERS)
    return Exchange(question, answer)


def statement(rng: Random) -> str:
    """A fact as a sentence, for the completions route."""
    return rng.choice((calendar, everyday, everyday))(rng).answer
