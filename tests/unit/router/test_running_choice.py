"""What a choice keeps of the workers that it has lost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from opentelemetry.trace import INVALID_SPAN

from pagemesh.router.call import Call
from pagemesh.router.generation.request import Choice, GenerationRequest
from pagemesh.router.generation.running_choice import RunningChoice
from pagemesh.router.placed_request import Order
from pagemesh.sampling.params import SamplingParams
from pagemesh.tokenizer import Tokenizer
from pagemesh.v1 import decode_pb2
from tests.unit.router.routing_builders import make_candidate

AMX, FMA = "cpu-amx-bfloat16", "cpu-fma-bfloat16"


def placement(arithmetic: str) -> Any:
    """On a worker of this class."""
    return SimpleNamespace(route=SimpleNamespace(decode=make_candidate(arithmetic=arithmetic)))


def begin_on(running: RunningChoice, arithmetic: str) -> None:
    """Send it to a worker of this class."""
    running.submission()
    running.placed.placement = placement(arithmetic)


def test_a_choice_belongs_where_its_last_tokens_were_made(demo_model: Path) -> None:
    call = Call("r", INVALID_SPAN, 0.0, 0)
    request = GenerationRequest(call, (Choice((1,), SamplingParams()),), 1, (), 0)
    running = RunningChoice(0, Tokenizer(demo_model), request, Order(call, 0, 1))
    wanted, beside = [], []
    for arithmetic, token_ids in ((AMX, []), (FMA, [20, 21]), (AMX, []), (AMX, [22])):
        begin_on(running, arithmetic)
        running.take(decode_pb2.RequestOutput(token_ids=token_ids))
        running.note_loss()
        wanted.append(running.wanted(frozenset()).arithmetic)
        beside.append([running.can_run_beside(placement(each)) for each in (AMX, FMA)])
    assert wanted == [None, FMA, FMA, AMX]
    # Another answer to its prompt may have found nobody of this class, before somebody came.
    assert beside == [[True, True], [False, True], [False, True], [True, False]]
