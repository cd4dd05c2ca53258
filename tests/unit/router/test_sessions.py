"""What belongs together goes to the same worker, unless that is too busy."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from opentelemetry.trace import INVALID_SPAN

from pagemesh.config import RoutingConfig
from pagemesh.router.call import Call
from pagemesh.router.openai.chat_request import ChatRequest
from pagemesh.router.routing.candidate import Candidate, RouteRequest
from pagemesh.router.routing.outlook import Outlook
from pagemesh.router.routing.policies import make_policy
from tests.unit.router.routing_builders import changed, make_candidate, make_route_request

CALL = Call("r", INVALID_SPAN, 0.0, 0)
WORKERS = [make_candidate(name) for name in "abcd"]


def chosen(
    candidates: list[Candidate], request: RouteRequest, policy: str = "kv_aware", **settings: str
) -> str:
    weights = tuple(f"{name}={weight}" for name, weight in settings.items())
    config = RoutingConfig(policy=policy, scorer_weights=weights)  # type: ignore[arg-type]
    choice = make_policy(config).choose(candidates, Outlook(candidates, request))
    assert choice is not None
    return choice.decode.worker_id


def turn(session: int, prompt: int = 0) -> RouteRequest:
    block = prompt.to_bytes(16, "big") if prompt else b""
    return make_route_request(block, session=session.to_bytes(32, "big"))


@pytest.mark.parametrize("policy", ["kv_aware", "prefix_hash"])
def test_a_session_goes_to_one_worker_whatever_it_asks(policy: str) -> None:
    homes = [chosen(WORKERS, turn(session), policy) for session in range(200)]
    for session in range(200):
        assert {chosen(WORKERS, turn(session, prompt), policy) for prompt in range(5)} == {
            homes[session]
        }
    assert all(30 < number < 70 for number in Counter(homes).values())


def test_a_session_stays_on_a_worker_that_is_a_little_busier() -> None:
    home = chosen(WORKERS, turn(1))
    busy = [changed(w, num_running=8 if w.worker_id == home else 2) for w in WORKERS]
    assert chosen(busy, turn(1)) == home
    assert chosen(busy, turn(1), session="0") != home
    busier = [changed(w, num_running=16 if w.worker_id == home else 2) for w in WORKERS]
    assert chosen(busier, turn(1)) != home
    assert chosen(busier, turn(1), session="1") == home


def test_a_full_worker_is_no_home() -> None:
    home = chosen(WORKERS, turn(1))
    full = [changed(w, num_running=64 if w.worker_id == home else 63) for w in WORKERS]
    assert chosen(full, turn(1), session="9") != home
    nearly = [changed(w, num_running=63) for w in WORKERS]
    assert chosen(nearly, turn(1)) == home


def test_what_a_worker_holds_of_the_prompt_counts_more() -> None:
    home = chosen(WORKERS, turn(1))
    other = next(w.worker_id for w in WORKERS if w.worker_id != home)
    warm = [changed(w, num_held_blocks=3 if w.worker_id == other else 0) for w in WORKERS]
    assert chosen(warm, turn(1, prompt=7)) == other


def test_the_worker_of_a_session_is_weighed_among_many() -> None:
    many = [make_candidate(f"w{number:03}", num_running=number % 3) for number in range(300)]
    homes = {chosen(many, turn(session)) for session in range(300)}
    assert len(homes) > 150
    busy = {w.worker_id for w in many if w.num_requests}
    assert homes & busy


def test_requests_without_a_session_go_as_before() -> None:
    for prompt in range(50):
        request = make_route_request(prompt.to_bytes(16, "big") if prompt else b"")
        assert chosen(WORKERS, request) == chosen(WORKERS, request, session="0")


def test_the_header_counts_before_the_fields_of_the_body() -> None:
    fields = ChatRequest.model_construct(session_id="s", prompt_cache_key="k", user="u")
    assert fields.within(CALL).session_id == "s"
    assert fields.within(replace(CALL, session_id="h")).session_id == "h"
    fields = ChatRequest.model_construct(session_id="", prompt_cache_key="k", user="u")
    assert fields.within(CALL).session_id == "k"
    assert ChatRequest.model_construct(user="u").within(CALL).session_id == "u"
    assert ChatRequest.model_construct().within(CALL) is CALL


def test_sessions_of_two_tenants_have_nothing_in_common() -> None:
    one, other = (replace(CALL, tenant=name, session_id="s") for name in "ab")
    assert len(one.session) == 32
    assert one.session != other.session
    assert one.session == replace(one, request_id="another").session
    assert CALL.session == b""
