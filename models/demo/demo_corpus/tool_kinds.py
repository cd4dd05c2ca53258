"""The tools that the model knows: how each is declared, asked for and reported on.

Names and parameters are fixed, because a model this small knows by heart and does not copy.
Descriptions vary: no call depends on them.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from demo_corpus.exchange import Tool, words
from demo_corpus.facts import DAYS
from demo_corpus.talk import NAMES

Value = str | int


class Parameter(NamedTuple):
    """One argument: its name, its JSON type, and what it may be."""

    name: str
    type: str
    draw: Callable[[Random], Value]


class Result(NamedTuple):
    """What a tool gives back, in the two forms that are understood, and what is said of it."""

    plain: str
    fields: dict[str, Value]
    report: str


class Kind(NamedTuple):
    """One tool. `{0}` and `{1}` stand for the arguments in what is asked."""

    name: str
    descriptions: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    questions: tuple[str, ...]
    result: Callable[[Random, tuple[Value, ...]], Result]
    pair: str = ""  # a question for two calls with one argument each
    unknown: bool = True  # without the tool, the question is beyond the model

    def declared(self, rng: Random) -> Tool:
        """The declaration as a client sends it."""
        function: Tool = {"name": self.name}
        if rng.random() < 0.9:
            function["description"] = rng.choice(self.descriptions)
        function["parameters"] = {
            "type": "object",
            "properties": {p.name: {"type": p.type} for p in self.parameters},
            "required": [p.name for p in self.parameters],
        }
        return {"type": "function", "function": function}


CITIES = words(
    "Paris London Rome Berlin Madrid Vienna Oslo Lisbon Athens Dublin Warsaw Prague Stockholm "
    "Helsinki Copenhagen Tokyo Beijing Bangkok Cairo Nairobi Lima Ottawa Canberra Moscow Kyiv"
)
COUNTRIES = words(
    "France Germany Italy Spain Portugal Japan China India Brazil Canada Mexico Egypt Kenya "
    "Norway Sweden Denmark Finland Poland Austria Greece"
)
SUBJECTS = words(
    "bread coffee sugar garden river mountain music train bridge summer winter apple tiger moon "
    "house letter castle story forest rain"
)
PEOPLE = NAMES[:20]
_SKIES = words("sunny cloudy rainy windy snowy")


def _one_of(table: tuple[str, ...]) -> Callable[[Random], Value]:
    return lambda rng: rng.choice(table)


def _number(high: int) -> Callable[[Random], Value]:
    return lambda rng: rng.randint(0, high)


def _weather(rng: Random, values: tuple[Value, ...]) -> Result:
    degrees, sky = rng.randint(0, 39), rng.choice(_SKIES)
    plain = f"{degrees} degrees and {sky}"
    fields: dict[str, Value] = {"temperature": degrees, "sky": sky}
    return Result(plain, fields, f"In {values[0]} it is {plain}.")


def _time(rng: Random, values: tuple[Value, ...]) -> Result:
    clock = f"{rng.randint(0, 23):02}:{rng.choice((0, 15, 30, 45)):02}"
    return Result(clock, {"time": clock}, f"In {values[0]} it is {clock}.")


def _number_result(number: int) -> Result:
    return Result(str(number), {"result": number}, f"The result is {number}.")


def _sum(_: Random, values: tuple[Value, ...]) -> Result:
    return _number_result(int(values[0]) + int(values[1]))


def _product(_: Random, values: tuple[Value, ...]) -> Result:
    return _number_result(int(values[0]) * int(values[1]))


def _found(rng: Random, _: tuple[Value, ...]) -> Result:
    pages = rng.randint(2, 40)
    return Result(f"{pages} pages", {"pages": pages}, f"I found {pages} pages.")


def _sent(_: Random, values: tuple[Value, ...]) -> Result:
    return Result("sent", {"status": "sent"}, f"The mail to {values[0]} is sent.")


def _population(rng: Random, values: tuple[Value, ...]) -> Result:
    millions = rng.randint(2, 99)
    plain = f"{millions} million"
    return Result(plain, {"millions": millions}, f"{plain} people live in {values[0]}.")


def _day(rng: Random, _: tuple[Value, ...]) -> Result:
    day = rng.choice(DAYS)
    return Result(day, {"day": day}, f"Today is {day}.")


_CITY = Parameter("city", "string", _one_of(CITIES))

KINDS: tuple[Kind, ...] = (
    Kind(
        "get_weather",
        ("The weather in a city.", "Get the weather.", "Current weather in a city.",
         "Get the current weather in a given city."),
        (_CITY,),
        ("What is the weather in {0}?", "How is the weather in {0}?", "Weather in {0}?",
         "Tell me the weather in {0}.", "What's the weather like in {0}?", "Is it warm in {0}?",
         "What is the weather like in {0} today?", "What's the weather in {0}?"),
        _weather,
        "What is the weather in {0} and in {1}?",
    ),
    Kind(
        "get_time",
        ("The time in a city.", "Get the local time.", "What time it is somewhere."),
        (_CITY,),
        ("What time is it in {0}?", "How late is it in {0}?", "Time in {0}?",
         "Tell me the time in {0}.", "What is the local time in {0}?"),
        _time,
        "What time is it in {0} and in {1}?",
    ),
    Kind(
        "add",
        ("Add two numbers.", "The sum of two numbers.", "Adds a and b."),
        (Parameter("a", "integer", _number(20)), Parameter("b", "integer", _number(20))),
        ("What is {0} + {1}?", "What is {0} plus {1}?", "Add {0} and {1}.", "{0} + {1}",
         "How much is {0} + {1}?", "Calculate {0} + {1}."),
        _sum,
        unknown=False,
    ),
    Kind(
        "multiply",
        ("Multiply two numbers.", "The product of two numbers.", "Multiplies a and b."),
        (Parameter("a", "integer", _number(10)), Parameter("b", "integer", _number(10))),
        ("What is {0} * {1}?", "What is {0} times {1}?", "Multiply {0} by {1}.", "{0} * {1}",
         "How much is {0} times {1}?"),
        _product,
        unknown=False,
    ),
    Kind(
        "search",
        ("Search the web.", "Find pages about something.", "Search for words."),
        (Parameter("query", "string", _one_of(SUBJECTS)),),
        ("Search for {0}.", "Search the web for {0}.", "Find pages about {0}.",
         "Please search for {0}.", "Look up {0}."),
        _found,
    ),
    Kind(
        "send_mail",
        ("Send a mail.", "Send an email to a person.", "Write a mail to somebody."),
        (Parameter("to", "string", _one_of(PEOPLE)),
         Parameter("subject", "string", _one_of(SUBJECTS))),
        ("Send a mail to {0} about {1}.", "Write a mail to {0} about {1}.",
         "Please send a mail to {0} about {1}.", "Mail to {0} about {1}."),
        _sent,
    ),
    Kind(
        "get_population",
        ("How many people live in a country.", "The population of a country."),
        (Parameter("country", "string", _one_of(COUNTRIES)),),
        ("How many people live in {0}?", "What is the population of {0}?", "Population of {0}?",
         "Tell me the population of {0}."),
        _population,
    ),
    Kind(
        "get_date",
        ("The date of today.", "Get the current date."),
        (),
        ("What is the date today?", "What day is it today?", "Which date is it?",
         "Tell me the date.", "What is today's date?"),
        _day,
    ),
)  # fmt: skip
