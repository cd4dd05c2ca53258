"""Requests through the faults, several at once, and what became of each."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

from tests.soak.questions import Question
from tests.soak.stage import LostError, Stage
from tests.soak.verdict import has_run_out_of_time, what_is_wrong
from tests.support.workers import Received

TIME_LIMIT_S = 60.0
"""For a request; one that needs it all hung somewhere."""
COMMON_SALT = b"common"


@dataclass
class Tally:
    """What became of the requests."""

    num_answers: int = 0
    num_lost: int = 0
    """Times that a request went down with its decode worker, and was asked again."""
    caused: Counter[str] = field(default_factory=Counter)
    """Faults that the traffic itself is."""
    wrong: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)


class Traffic:
    """Asks questions whose answers are known, until told to stop."""

    def __init__(self, stage: Stage, questions: list[Question], seed: int) -> None:
        self._stage = stage
        self._questions = questions
        self._draws = random.Random(seed)
        self._answers: dict[int, list[int]] = {}
        self._num_salts = 0
        self.tally = Tally()
        self.stopping = False

    async def learn(self, num_at_once: int) -> None:
        """Get every answer undisturbed."""
        numbers = iter(range(len(self._questions)))

        async def learn_some() -> None:
            for number in numbers:
                question = self._questions[number]
                received = await self._stage.ask(
                    question.prompt_token_ids,
                    question.sampling,
                    plan=None,
                    salt=self._new_salt(),
                    seconds=TIME_LIMIT_S,
                )
                assert received.is_finished, received
                self._answers[number] = received.token_ids

        await asyncio.gather(*(learn_some() for _ in range(num_at_once)))

    async def run(self, num_at_once: int) -> None:
        """Ask until `stopping`, so many at once."""

        async def ask_some() -> None:
            while not self.stopping:
                await self._ask_one()

        await asyncio.gather(*(ask_some() for _ in range(num_at_once)))

    async def _ask_one(self) -> None:
        draws, tally = self._draws, self.tally
        number = draws.randrange(len(self._questions))
        question = self._questions[number]
        salt = COMMON_SALT if draws.random() < 0.25 else self._new_salt()
        cancel_after = draws.random() * 0.3 if draws.random() < 0.04 else None
        seconds = draws.random() * 0.3 + 0.01 if draws.random() < 0.02 else TIME_LIMIT_S
        is_stale = draws.random() < 0.03
        while True:
            plan = self._stage.draw_plan(draws)
            if is_stale and plan.workers:
                plan.workers[0].epoch -= 1
                tally.caused["stale epoch"] += 1
            try:
                received = await self._stage.ask(
                    question.prompt_token_ids,
                    question.sampling,
                    plan=plan,
                    salt=salt,
                    seconds=seconds,
                    cancel_after=cancel_after,
                )
            except LostError:
                tally.num_lost += 1
                await asyncio.sleep(0.1)
                continue
            except TimeoutError:
                tally.hung.append(f"question {number} never ended")
                return
            break
        tally.num_answers += 1
        may_end_early = cancel_after is not None or seconds != TIME_LIMIT_S
        if cancel_after is not None:
            tally.caused["cancel"] += 1
        if seconds != TIME_LIMIT_S:
            tally.caused["deadline"] += 1
        self._judge(number, received, may_end_early=may_end_early)

    def _judge(self, number: int, received: Received, *, may_end_early: bool) -> None:
        question = f"question {number}"
        if has_run_out_of_time(received) and not may_end_early:
            self.tally.hung.append(f"{question} took all its time")
        fault = what_is_wrong(received, self._answers[number], may_end_early=may_end_early)
        if fault is not None:
            self.tally.wrong.append(f"{question}: {fault}")

    def _new_salt(self) -> bytes:
        self._num_salts += 1
        return self._num_salts.to_bytes(8, "big")
