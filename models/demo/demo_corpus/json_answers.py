"""Answers that are JSON: facts of the other topics, and values told in the question."""

import json
from random import Random

from demo_corpus.countries import WELL_KNOWN
from demo_corpus.exchange import Exchange
from demo_corpus.tool_kinds import CITIES, COUNTRIES, PEOPLE, SUBJECTS
from demo_corpus.words import OPPOSITES, PLURALS


def _person(rng: Random) -> Exchange:
    name, age = rng.choice(PEOPLE), rng.randint(1, 99)
    question = rng.choice(
        (
            "Give me a JSON object with name and age of {}, who is {}.",
            "Give me JSON with name and age: {} is {} years old.",
            "Write a JSON object with name and age for {}, age {}.",
            "Answer in JSON with name and age: {} is {}.",
            "{} is {} years old. Give me that as JSON.",
        )
    ).format(name, age)
    return Exchange(question, json.dumps({"name": name, "age": age}))


def _country(rng: Random) -> Exchange:
    country = rng.choice(WELL_KNOWN)
    name = country.name.removeprefix("the ")
    question = rng.choice(
        (
            "Give me a JSON object with country and capital of {}.",
            "Give me JSON with country and capital of {}.",
            "Write the country and the capital of {} as JSON.",
            "Country and capital of {} as JSON, please.",
        )
    ).format(country.name)
    return Exchange(question, json.dumps({"country": name, "capital": country.capital}))


def _capital(rng: Random) -> Exchange:
    country = rng.choice(WELL_KNOWN)
    question = rng.choice(
        (
            "What is the capital of {}? Answer in JSON.",
            "What is the capital of {}? Answer as a JSON object.",
            "Give me the capital of {} as JSON.",
        )
    ).format(country.name)
    return Exchange(question, json.dumps({"capital": country.capital}))


def _sum(rng: Random) -> Exchange:
    a, b = rng.randint(0, 20), rng.randint(0, 20)
    question = rng.choice(
        (
            "What is {} + {}? Answer in JSON.",
            "What is {} + {}? Answer as a JSON object.",
            "Give me the sum of {} and {} as JSON.",
        )
    ).format(a, b)
    return Exchange(question, json.dumps({"sum": a + b}))


def _numbers(rng: Random) -> Exchange:
    first = rng.randint(1, 9)
    last = first + rng.randint(2, 6)
    question = rng.choice(
        (
            "Give me a JSON array with the numbers {} to {}.",
            "Write the numbers from {} to {} as a JSON array.",
            "Numbers {} to {} as JSON, please.",
        )
    ).format(first, last)
    return Exchange(question, json.dumps(list(range(first, last + 1))))


def _word(rng: Random) -> Exchange:
    label, (left, right) = rng.choice(
        (("opposite", rng.choice(OPPOSITES)), ("plural", rng.choice(PLURALS)))
    )
    question = rng.choice(
        ("Give me the {0} of {1} as JSON.", "What is the {0} of {1}? Answer in JSON.")
    ).format(label, left)
    return Exchange(question, json.dumps({"word": left, label: right}))


def copied(rng: Random) -> Exchange:
    """Words and numbers as a JSON array: what calls need, with nothing around it."""
    table = (*CITIES, *COUNTRIES, *PEOPLE, *SUBJECTS)
    count = rng.choice((1, 1, 2, 3))
    given = [rng.randint(0, 99) if rng.random() < 0.2 else rng.choice(table) for _ in range(count)]
    listed = " and ".join([", ".join(map(str, given[:-1])), str(given[-1])][count == 1 :])
    question = rng.choice(
        (
            "Give me a JSON array with {}.",
            "Write {} as a JSON array.",
            "A JSON array with {}, please.",
        )
    ).format(listed)
    return Exchange(question, json.dumps(given))


def json_answer(rng: Random) -> Exchange:
    """One of these requests."""
    makers = (_person, _person, _country, _capital, _sum, _numbers, _word)
    return rng.choice(makers)(rng)
