"""One cell of the matrix, played on a site: what happened, and what of it must not."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.asking import Outcome
from tests.chaos.faults import FAULTS, Victim
from tests.chaos.matrix import Cell, Seen, expected
from tests.chaos.phases import PHASES, MissedError, Scene
from tests.chaos.site import CLIENT, PREFILL, VALKEY, Site

DEADLINE_S: Final = 60.0
"""For an answer, whole or not, from the fault on."""
RECOVERY_S: Final = 5.0
"""From the end of the fault, or from the blow that has none, to the next right answer, on a machine that does nothing
else."""
GIVE_UP_S: Final = 30.0
"""Likewise, whatever else the machine does: a process that starts again takes the time that others leave it."""
CROWD_STAYS_S: Final = 0.5
NUM_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """What happened in a cell."""

    seen: str
    """What of `Seen` it was, or "hung"."""
    error: str | None
    """In the client's words."""
    pause_s: float
    """The longest time in which the client got nothing new."""
    recovery_s: float
    """Until a new request was answered."""
    whole_s: float
    """Until every process was there again and nothing was held."""
    wrong: list[str] = field(default_factory=list)
    """What must not be; empty when the cell is passed."""


def play(site: Site, cell: Cell, longest_recovery_s: float) -> Finding:
    """Bring a request into the phase, do it, and look."""
    with ExitStack() as stack:
        scene = _enter(site, cell, stack)
        fault = FAULTS[cell.fault](Victim(site, victim(cell.row, scene), scene.client.pid))
        scene.moment()
        fault.begin()
        begun_at = time.monotonic()
        # While whoever waits for an end waits for it, those in front of the request leave.
        leaving = threading.Timer(CROWD_STAYS_S, scene.crowd.close)
        leaving.start()
        stack.callback(leaving.join)
        if fault.hold_s is None:
            scene.client.wait_for_end(DEADLINE_S)
        else:
            time.sleep(fault.hold_s)
        fault.end()
        ended_at = begun_at if fault.hold_s == 0.0 else time.monotonic()
        recovery_s = _seconds_until_probed(site, ended_at)
        has_ended = scene.client.wait_for_end(DEADLINE_S)
        outcome = scene.client.outcome
        # Whoever was never heard of again was last heard of at the start.
        scene.client.close()
    # Who was told to stop may have answered once more before it did.
    fault.wait_until_over()
    recovery_s = max(recovery_s, _seconds_until_probed(site, time.monotonic()))
    wrong = [f"recovered after {recovery_s:.1f} s"] if recovery_s > longest_recovery_s else []
    try:
        site.wait_until_whole()
    except AssertionError as error:
        wrong.append(f"leaked or lost: {error}")
    whole_s = time.monotonic() - ended_at
    seen = _seen(cell, outcome, has_ended=has_ended)
    wrong += judge(cell, seen, outcome, site.answer_to(scene.body))
    return Finding(seen, outcome.error, outcome.longest_pause(), recovery_s, whole_s, wrong)


def _enter(site: Site, cell: Cell, stack: ExitStack) -> Scene:
    """Phases pass; one that was over before it was seen is tried again."""
    for _ in range(NUM_TRIES):
        attempt = ExitStack()
        try:
            scene = PHASES[cell.phase](site, attempt)
        except MissedError:
            attempt.close()
            site.wait_until_idle()
            continue
        stack.enter_context(attempt)
        return scene
    raise AssertionError(f"never {cell.phase}")


def victim(row: str, scene: Scene) -> str:
    """The process of a scene that a row is about."""
    names = {
        "gateway": "gateway",
        "router": scene.router,
        "prefill worker": PREFILL,
        "prefill engine": f"{PREFILL} engine",
        "decode worker": scene.decode,
        "decode engine": f"{scene.decode} engine",
        "kvstore": "kvstore",
        "client": CLIENT,
        "kvstore replica": "kvstore-0",
        "Valkey": VALKEY,
    }
    return names[row]


def _seconds_until_probed(site: Site, since: float) -> float:
    while not site.probe():
        if time.monotonic() - since > GIVE_UP_S:
            break
        time.sleep(0.02)
    return time.monotonic() - since


def _seen(cell: Cell, outcome: Outcome, *, has_ended: bool) -> str:
    if not has_ended:
        return "hung"
    if Seen.GONE in expected(cell):
        return Seen.GONE
    return Seen.WHOLE if outcome.is_whole else Seen.ERROR


def judge(cell: Cell, seen: str, outcome: Outcome, answer: Outcome) -> list[str]:
    """What is wrong with what a client got."""
    wrong = []
    if seen not in expected(cell):
        wrong.append(f"{seen}, not {' or '.join(sorted(expected(cell)))}: {outcome.error}")
    if seen == Seen.WHOLE:
        if (outcome.text, outcome.num_tokens) != (answer.text, answer.num_tokens):
            wrong.append(f"a wrong answer: {outcome.text!r}, not {answer.text!r}")
    elif not answer.text.startswith(outcome.text):
        wrong.append(f"no beginning of the answer: {outcome.text!r} of {answer.text!r}")
    if seen == Seen.ERROR and outcome.error is None:
        wrong.append("an end without a word")
    return wrong
