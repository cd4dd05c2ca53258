"""Conversations in which functions are offered: calls, answers to results, and plain answers."""

import json
from random import Random

from demo_corpus import facts, geography, identity, mesh, rewriting, talk
from demo_corpus.exchange import Message, Tool, Topic
from demo_corpus.talk import UNKNOWN_ANSWER
from demo_corpus.tool_kinds import KINDS, Kind, Value

# Answered without a tool, whatever tools there are.
_PLAIN: tuple[Topic, ...] = (
    geography.capital,
    geography.capital,
    geography.continent,
    identity.identity,
    identity.identity,
    mesh.part,
    rewriting.opposite,
    rewriting.plural,
    facts.everyday,
    talk.small_talk,
    talk.small_talk,
)

Call = tuple[Kind, tuple[Value, ...]]


def _message(call: Call) -> Message:
    kind, values = call
    names = (parameter.name for parameter in kind.parameters)
    arguments = dict(zip(names, values, strict=True))
    return {"type": "function", "function": {"name": kind.name, "arguments": arguments}}


def _draw(rng: Random, kind: Kind) -> tuple[Value, ...]:
    return tuple(parameter.draw(rng) for parameter in kind.parameters)


def _weight(kind: Kind) -> float:
    """Words are harder to carry over into a call than digits, so they are practised more."""
    return 1.0 if any(parameter.type == "string" for parameter in kind.parameters) else 0.3


def _calls(rng: Random, offered: list[Kind]) -> tuple[str, list[Call]]:
    """A question, and the calls that answer it."""
    kind = rng.choices(offered, [_weight(kind) for kind in offered])[0]
    values = _draw(rng, kind)
    if kind.pair and rng.random() < 0.25:
        others = _draw(rng, kind)
        return kind.pair.format(*values, *others), [(kind, values), (kind, others)]
    return rng.choice(kind.questions).format(*values), [(kind, values)]


def _called_turns(rng: Random, offered: list[Kind]) -> list[Message]:
    question, calls = _calls(rng, offered)
    turns: list[Message] = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "tool_calls": [_message(call) for call in calls]},
    ]
    as_json = rng.random() < 0.4
    reports = []
    for kind, values in calls:
        result = kind.result(rng, values)
        content = json.dumps(result.fields) if as_json else result.plain
        turns.append({"role": "tool", "content": content})
        reports.append(result.report)
    turns.append({"role": "assistant", "content": " ".join(reports)})
    return turns


def _plain_turns(rng: Random, offered: list[Kind]) -> list[Message]:
    if rng.random() < 0.25:
        kind = rng.choice([kind for kind in KINDS if kind.unknown and kind not in offered])
        question = rng.choice(kind.questions).format(*_draw(rng, kind))
        answer = UNKNOWN_ANSWER
    else:
        made = rng.choice(_PLAIN)(rng)
        question, answer = made.question, made.answer
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def conversation(rng: Random) -> tuple[list[Message], list[Tool]]:
    """The turns, and the one to three tools that are there."""
    offered = rng.sample(KINDS, rng.choice((1, 1, 1, 2, 2, 3)))
    turns: list[Message] = []
    for _ in range(rng.choice((2, 3, 4))):
        make = _called_turns if rng.random() < 0.75 else _plain_turns
        turns.extend(make(rng, offered))
    return turns, [kind.declared(rng) for kind in offered]
