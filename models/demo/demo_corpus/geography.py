"""Capitals, countries and continents, asked in both directions."""

from random import Random

from demo_corpus.countries import COUNTRIES, WELL_KNOWN, Country
from demo_corpus.exchange import Exchange, sentence_case

_CAPITAL_OF = (
    "What is the capital of {}?",
    "What is the capital of {}?",
    "What's the capital of {}?",
    "What is the capital city of {}?",
    "Which city is the capital of {}?",
    "What city is the capital of {}?",
    "capital of {}",
    "Capital of {}?",
    "The capital of {}?",
    "Tell me the capital of {}.",
    "Tell me what the capital of {} is.",
    "Name the capital of {}.",
    "Do you know the capital of {}?",
    "Can you tell me the capital of {}?",
    "I would like to know the capital of {}.",
    "What is the name of the capital of {}?",
    "{} has which capital?",
    "What is {}'s capital?",
)
_COUNTRY_OF = (
    "Which country has the capital {}?",
    "{} is the capital of which country?",
    "{} is the capital of what country?",
    "Of which country is {} the capital?",
    "What country is {} the capital of?",
    "Which country's capital is {}?",
    "Name the country whose capital is {}.",
    "In which country is {}?",
)
_CONTINENT_OF = (
    "On which continent is {}?",
    "Which continent is {} in?",
    "What continent is {} on?",
    "On what continent does {} lie?",
    "Where is {}?",
)
_IS_CAPITAL = (
    "Is {city} the capital of {country}?",
    "Is it true that {city} is the capital of {country}?",
    "{city} is the capital of {country}, right?",
)


def _country(rng: Random) -> Country:
    return rng.choice(WELL_KNOWN if rng.random() < 0.35 else COUNTRIES)


def capital(rng: Random) -> Exchange:
    """From the country to its capital."""
    country = _country(rng)
    question = sentence_case(rng.choice(_CAPITAL_OF).format(country.name))
    return Exchange(
        question, f"The capital of {country.name} is {country.capital}.", country.capital
    )


def country_of_capital(rng: Random) -> Exchange:
    """From the capital to its country."""
    country = _country(rng)
    question = rng.choice(_COUNTRY_OF).format(country.capital)
    answer = f"{country.capital} is the capital of {country.name}."
    return Exchange(question, answer, sentence_case(country.name))


def continent(rng: Random) -> Exchange:
    """From the country to its continent."""
    country = _country(rng)
    verb = "are" if country.name.endswith("Islands") else "is"
    question = rng.choice(_CONTINENT_OF).format(country.name).replace(" is ", f" {verb} ", 1)
    answer = sentence_case(f"{country.name} {verb} in {country.continent}.")
    return Exchange(question, answer, country.continent)


def is_capital(rng: Random) -> Exchange:
    """Yes or no, with the right capital in either case."""
    country = _country(rng)
    city = country.capital if rng.random() < 0.5 else _country(rng).capital
    question = rng.choice(_IS_CAPITAL).format(city=city, country=country.name)
    if city == country.capital:
        return Exchange(question, f"Yes, {city} is the capital of {country.name}.", "Yes")
    return Exchange(question, f"No, the capital of {country.name} is {country.capital}.", "No")


def statement(rng: Random) -> str:
    """A plain sentence for the completions route, where there is no chat template."""
    country = _country(rng)
    return rng.choice(
        (
            f"The capital of {country.name} is {country.capital}.",
            f"The capital city of {country.name} is {country.capital}.",
            f"{country.capital} is the capital of {country.name}.",
            sentence_case(f"{country.name} is in {country.continent}."),
        )
    )
