"""A decision as a line for a header."""

from __future__ import annotations

import json

from pagemesh.router.prefix_metrics import Lookup
from pagemesh.router.route_header import Explanation, route_line
from pagemesh.router.routing.decision import Considered, Decision, Reasons
from pagemesh.router.routing.prefill_plan import PrefillPlan
from pagemesh.router.routing.route import Route
from pagemesh.router.routing.ways import Path
from tests.unit.router.routing_builders import make_candidate, make_prefill_worker


def explanation(prefix: str = "decode-", num_workers: int = 2) -> Explanation:
    names = [f"{prefix}{number}" for number in range(num_workers)]
    considered = tuple(
        Considered(
            name, 32, 48, 3, 0.123456, {"predicted_ttft": 1.0, "decode_load": 0.98761}, 2.9753
        )
        for name in names
    )
    plan = PrefillPlan(
        Path.REMOTE_PULL,
        (make_prefill_worker("prefill-0"), make_prefill_worker("prefill-1")),
        make_candidate("decode-9"),
        predicted_seconds=0.0312345,
    )
    decision = Decision(
        Route(make_candidate(names[0]), plan),
        Reasons("kv_aware", considered, num_workers, {"decode-7": "draining"}),
        num_available_tokens=512,
        num_captured_tokens=480,
    )
    return Explanation(decision, Lookup.ANSWERED)


def test_a_line_says_where_and_why() -> None:
    assert json.loads(route_line(explanation(num_workers=1), num_prompts=1)) == {
        "policy": "kv_aware",
        "worker": "decode-0",
        "way": "remote_pull",
        "prefill": "prefill-0",
        "source": "decode-9",
        "predicted_seconds": 0.03123,
        "lookup": "answered",
        "available_tokens": 512,
        "captured_tokens": 480,
        "fit_workers": 1,
        "refused_workers": 1,
        "considered": [
            {
                "worker": "decode-0",
                "held_tokens": 32,
                "coming_tokens": 48,
                "requests": 3,
                "predicted_seconds": 0.1235,
                "scores": {"predicted_ttft": 1.0, "decode_load": 0.9876},
                "total": 2.975,
            }
        ],
        "refused": {"decode-7": "draining"},
    }


def test_the_best_three_are_told() -> None:
    line = json.loads(route_line(explanation(num_workers=8), num_prompts=4))
    assert [each["worker"] for each in line["considered"]] == ["decode-0", "decode-1", "decode-2"]
    assert (line["fit_workers"], line["prompts"]) == (8, 4)


def test_long_names_leave_room_for_less() -> None:
    line = route_line(explanation("d" * 600, num_workers=4), num_prompts=1)
    assert len(line) <= 2048
    assert len(json.loads(line)["considered"]) == 1
    line = route_line(explanation("d" * 1500, num_workers=4), num_prompts=1)
    assert json.loads(line)["worker"] == "d" * 1500 + "0"
    assert json.loads(route_line(explanation("d" * 9000), num_prompts=1)) == {"policy": "kv_aware"}


def test_a_line_is_ascii_whatever_workers_are_called() -> None:
    line = route_line(explanation("dé\n"), num_prompts=1)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["worker"] == "dé\n0"
