"""The pictures are what the code gives, and say what it does."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from pagemesh.identity.roles import CALLERS
from tools.pictures import architecture, batching, blocks, routing, transfer
from tools.pictures.__main__ import FOLDER, PICTURES, stale
from tools.pictures.svg import SCHEMES, Drawing, in_one_scheme


def test_the_committed_pictures_are_drawn_from_this_code() -> None:
    assert stale() == [], "run make pictures"


@pytest.mark.parametrize("name", PICTURES)
def test_words_stay_within_the_picture(name: str) -> None:
    drawing = ElementTree.fromstring((FOLDER / f"{name}.svg").read_text(encoding="utf-8"))
    width, height = (float(drawing.attrib[side]) for side in ("width", "height"))
    for words in drawing.iter("{http://www.w3.org/2000/svg}text"):
        # A letter is about half as wide as it is high.
        long = len(words.text or "") * float(words.attrib["font-size"]) * 0.52
        share = {"start": 0.0, "middle": 0.5, "end": 1.0}[words.attrib["text-anchor"]]
        left = float(words.attrib["x"]) - long * share
        assert left >= 0, words.text
        assert left + long <= width, words.text
        assert float(words.attrib["y"]) <= height, words.text


def test_all_calls_of_requests_are_in_the_architecture() -> None:
    drawn = {method for methods in architecture.calls().values() for method in methods}
    named = {name.removeprefix("pagemesh.v1.") for name in CALLERS}
    aside = {"Process", "Process/Metrics", "Peers/Reach", "Peers/Introduce"}
    assert drawn == {name.rpartition("/")[2] for name in named - aside}


def test_the_schedulers_example_has_chunks_beside_decodes_and_somebody_who_waits() -> None:
    steps = batching.steps()
    assert all(sum(n for n, _ in step.values()) <= batching.BUDGET for step in steps)
    assert [step["C"] for step in steps if "C" in step][:3] == [
        (14, False),
        (14, False),
        (6, False),
    ]
    begun = {
        asked.name: next(i for i, step in enumerate(steps) if asked.name in step)
        for asked in batching.ASKED
    }
    assert begun["D"] > 3
    assert begun["E"] > 5


def test_the_second_prompt_finds_what_it_shares_with_the_first() -> None:
    first, second = map(blocks.hashes_of, blocks.prompts())
    assert blocks.num_shared() == 3
    assert first[:3] == second[:3]
    assert first[3] != second[3]


def test_the_routing_example_leaves_a_full_holder_and_pulls_from_it() -> None:
    decision = routing.decision()
    assert decision.route.decode.worker_id == "decode-2"
    assert decision.route.plan is not None
    assert decision.route.plan.source is not None
    assert decision.route.plan.source.worker_id == "decode-0"
    assert decision.reasons.refused == {"decode-3": "context"}


def test_the_transfer_example_hides_all_but_the_last_layer() -> None:
    course = transfer.course()
    assert len(course.chunks) == 4
    last_kv = max(sent.ended for sent in course.sent)
    assert 0 < last_kv - course.chunks[-1][1] < 0.01


def test_a_picture_in_one_scheme_has_its_colours_alone() -> None:
    text = Drawing(10, 10, "nothing").text()
    dark = in_one_scheme(text, "dark")
    assert SCHEMES["dark"]["ink"] in dark
    assert SCHEMES["light"]["ink"] not in dark
    with pytest.raises(ValueError, match="no style of its own"):
        in_one_scheme("<svg/>", "dark")
