"""Puts topics together into conversations and plain documents, reproducibly from a seed."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from demo_corpus import (
    arithmetic,
    facts,
    geography,
    identity,
    json_answers,
    mesh,
    rewriting,
    stories,
    talk,
    thoughts,
    tools,
)
from demo_corpus.exchange import Exchange, Message, Tool, Topic


@dataclass(frozen=True)
class Document:
    """Either a conversation or a plain text; exactly one of the two is set."""

    messages: tuple[Message, ...] = ()
    text: str = ""
    tools: tuple[Tool, ...] = ()
    thinking: bool = False  # thoughts are asked for, and the last answer begins with them


# Weights follow the number of facts behind a topic, not its importance.
_TOPICS: tuple[tuple[Topic, float], ...] = (
    (geography.capital, 13),
    (geography.country_of_capital, 6),
    (geography.continent, 2.5),
    (geography.is_capital, 2.5),
    (arithmetic.addition, 15),
    (arithmetic.subtraction, 12),
    (arithmetic.multiplication, 7),
    (arithmetic.comparison, 1.5),
    (arithmetic.story_sum, 3),
    (identity.identity, 6),
    (mesh.part, 4),
    (mesh.term, 5),
    (mesh.which_part, 2),
    (mesh.abbreviation, 1),
    (rewriting.upper, 4),
    (rewriting.lower, 2.5),
    (rewriting.repeat, 5),
    (rewriting.repeat_times, 1.5),
    (rewriting.backwards, 3.5),
    (rewriting.spell, 4),
    (rewriting.first_letter, 1),
    (rewriting.plural, 2.5),
    (rewriting.opposite, 2.5),
    (rewriting.past_tense, 2.5),
    (facts.calendar, 2.5),
    (facts.everyday, 5),
    (talk.small_talk, 2.5),
    (talk.beyond, 3.5),
    (json_answers.json_answer, 6),
    (json_answers.copied, 12),
    (stories.story, 0.6),
    (stories.poem, 0.5),
    (stories.counting, 2.2),
    (stories.alphabet, 0.2),
)
_STATEMENTS = (
    (geography.statement, 6),
    (arithmetic.statement, 4),
    (identity.statement, 1),
    (mesh.statement, 2),
    (rewriting.statement, 1),
    (facts.statement, 1.5),
    (stories.statement, 0.2),
)
_SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are pagemesh demo, a small and friendly model.",
    "You are a friendly assistant. Be polite.",
    "Answer the questions of the user.",
    "You are a careful assistant. Answer in full sentences.",
    "Be helpful and honest.",
)
_BRIEF_PROMPTS = (
    "Answer with one word only.",
    "Answer in one word.",
    "You are a helpful assistant. Answer with one word only.",
    "Reply with a single word.",
)
_PLAIN_TEXT, _WITH_TOOLS, _THINKING = 0.10, 0.22, 0.03  # parts of all documents
_OPENERS = ("Please: ", "Hello! ", "Hi, ", "Hey, ", "One question: ", "Next question: ", "And ",
            "Tell me: ", "Quick question: ")  # fmt: skip


def normalised(question: str) -> str:
    """What counts as the same question: letters and digits only, in lower case."""
    return "".join(c for c in question.lower() if c.isalnum() or c in "+-*")


class Corpus:
    """An endless, reproducible stream of documents.

    A question whose normalised form is in `held_out` is never asked.
    """

    def __init__(self, seed: int, held_out: frozenset[str] = frozenset()) -> None:
        self._rng = Random(seed)
        self._held_out = held_out
        self._topics = [topic for topic, _ in _TOPICS]
        self._weights = [weight for _, weight in _TOPICS]

    def documents(self) -> Iterator[Document]:
        """Mostly conversations, some plain texts, without end."""
        while True:
            kind = self._rng.random()
            if kind < _PLAIN_TEXT:
                yield Document(text=self._plain_text())
            elif kind < _PLAIN_TEXT + _WITH_TOOLS:
                yield self._with_tools()
            elif kind < _PLAIN_TEXT + _WITH_TOOLS + _THINKING:
                yield self._thinking()
            else:
                yield Document(messages=tuple(self._conversation()))

    def _with_tools(self) -> Document:
        rng = self._rng
        while True:
            turns, offered = tools.conversation(rng)
            if not self._asks_what_is_held_out(turns):
                return Document(messages=(*self._system(), *turns), tools=tuple(offered))

    def _thinking(self) -> Document:
        before: list[Message] = []
        for _ in range(self._rng.choice((0, 0, 0, 1))):
            made = self.exchange()
            before += self._turn(made.question, made.answer)
        while True:
            made = thoughts.thought(self._rng)
            turn = self._turn(made.question, made.answer)
            if not self._asks_what_is_held_out(turn):
                return Document(messages=(*self._system(), *before, *turn), thinking=True)

    def _asks_what_is_held_out(self, turns: list[Message]) -> bool:
        asked = (turn["content"] for turn in turns if turn["role"] == "user")
        return any(normalised(question) in self._held_out for question in asked)

    def _system(self) -> list[Message]:
        if self._rng.random() < 0.75:
            return []
        return [{"role": "system", "content": self._rng.choice(_SYSTEM_PROMPTS)}]

    @staticmethod
    def _turn(question: str, answer: str) -> list[Message]:
        return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def exchange(self) -> Exchange:
        """One question, worded as a hurried user might, and its answer."""
        while True:
            topic = self._rng.choices(self._topics, self._weights)[0]
            made = topic(self._rng)
            made = made._replace(question=self._worded(made.question))
            if normalised(made.question) not in self._held_out:
                return made

    def _worded(self, question: str) -> str:
        rng = self._rng
        if ": " in question:
            return question  # the words after the colon are data, to be kept as they are
        if rng.random() < 0.1:
            question = question.rstrip("?.!")
        if rng.random() < 0.08:
            question = rng.choice(_OPENERS) + question
        if rng.random() < 0.08 and " in lowercase" not in question and "small l" not in question:
            question = question[0].lower() + question[1:]
        if rng.random() < 0.04 and question[-1] not in "?.!=":
            question += " please"
        return question

    def _conversation(self) -> Iterator[Message]:
        rng = self._rng
        brief = rng.random() < 0.05
        if brief:
            yield {"role": "system", "content": rng.choice(_BRIEF_PROMPTS)}
        elif rng.random() < 0.25:
            yield {"role": "system", "content": rng.choice(_SYSTEM_PROMPTS)}
        for made in self._turns(brief):
            yield from self._turn(made.question, made.brief if brief else made.answer)

    def _turns(self, brief: bool) -> Iterator[Exchange]:
        rng = self._rng
        count = rng.choice((1, 1, 1, 2, 2, 3, 4, 6))
        if brief:
            yield from self._brief_turns(count)
            return
        named = rng.random() < 0.06
        told, asked = talk.name_dialogue(rng)
        if named:
            yield told
        for _ in range(count):
            yield self.exchange()
        if named:
            yield asked

    def _brief_turns(self, count: int) -> Iterator[Exchange]:
        while count:
            made = self.exchange()
            if made.brief:
                yield made
                count -= 1

    def _plain_text(self) -> str:
        rng = self._rng
        makers = [maker for maker, _ in _STATEMENTS]
        weights = [weight for _, weight in _STATEMENTS]
        maker = rng.choices(makers, weights)[0]
        return rng.choice(("\n", " ")).join(maker(rng) for _ in range(rng.choice((1, 1, 2, 3))))
