"""Vercel's AI SDK, by its provider for whatever speaks OpenAI's API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.ecosystem.conftest import HERE
from tests.ecosystem.questions import ANSWER, PLACE, QUESTION, REPORT, SKY, WIDTH
from tests.mesh.harness import Mesh
from tests.support.node_scripts import installed

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def found(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = installed(HERE / "node", tmp_path_factory.mktemp("ai_sdk"))
    return json.loads(run("ai_sdk.mjs", mesh.url, QUESTION, PLACE, SKY))


@pytest.mark.parametrize("how", ["whole", "streamed"])
def test_text_comes_whole_and_in_pieces_with_its_usage(found: Any, how: str) -> None:
    assert (found[how]["text"], found[how]["reason"]) == (ANSWER, "stop")
    usage = found[how]["usage"]
    assert (usage["inputTokens"], usage["outputTokens"]) == (18, 8)


def test_tools_are_run_until_there_is_an_answer(found: Any) -> None:
    assert found["heard"] == ["Oslo", "Oslo"]
    assert [found["called"], found["streamedAnswer"]] == [REPORT] * 2


def test_objects_keep_to_their_schema(found: Any) -> None:
    for each in found["structured"], found["streamedObject"]:
        assert each.keys() == {"city", "sure"}
        assert (each["city"], type(each["sure"])) == ("Paris", bool)


def test_texts_are_embedded(found: Any) -> None:
    assert found["embeddings"] == [WIDTH] * 3


def test_its_errors_say_what_is_wrong(found: Any) -> None:
    wrong = found["wrong"]
    assert {each["name"] for each in wrong.values()} == {"AI_APICallError"}
    assert (wrong["model"]["status"], wrong["field"]["status"]) == (404, 400)
    assert "'nope'" in wrong["model"]["message"]
    assert "temperature is 9" in wrong["field"]["message"]
