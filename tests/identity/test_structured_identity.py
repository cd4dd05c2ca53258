"""Structured outputs are what was asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tokenizers import Tokenizer

from pagemesh.config import ModelConfig
from pagemesh.core.request import FinishReason
from pagemesh.models.loader import load_model
from tests.identity.demo_requests import NUM_STRUCTURED_PROMPTS, PATTERN, structured_requests
from tests.identity.engines import Peer, generate


def test_a_batch_of_many_kinds_gives_what_was_asked_for(demo_model: Path) -> None:
    model = load_model(ModelConfig(str(demo_model)))
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    requests = structured_requests(model)
    peer = Peer(model)
    tokens = generate(peer, requests)
    texts: dict[str, list[str]] = {}
    for request in requests:
        kind = request.request_id.rpartition(" ")[0]
        if peer.ends[request.request_id].finish_reason is FinishReason.STOP:
            texts.setdefault(kind, []).append(tokenizer.decode(tokens[request.request_id]))
    for text in (*texts["json"], *texts["greedy json"]):
        value = json.loads(text)
        assert value["city"] in ("Paris", "Rome", "Vienna")
        assert 1 <= value["people"] <= 999
    assert all(re.fullmatch(PATTERN, text) for text in texts["regex"] + texts["greedy regex"])
    assert {*texts["choice"]} <= {"Paris", "Paris, France", "Oslo"}
    assert all(re.fullmatch(r"\(*[0-9]{1,3}\)*", text) for text in texts["grammar"])
    assert all(re.fullmatch("a{7,}", text) for text in texts.get("late end", ()))
    assert set(texts["ignored end"]) == {"b" * 9}
    num_ended = {kind: len(ended) for kind, ended in texts.items()}
    assert num_ended["json"] == num_ended["choice"] == NUM_STRUCTURED_PROMPTS
