"""Events of several servers, however they are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagemesh.bench.answer_stream import AnswerStream
from pagemesh.bench.record import Record


def events(*contents: dict[str, Any] | str) -> bytes:
    return b"".join(
        f"data: {c if isinstance(c, str) else json.dumps(c)}\n\n".encode() for c in contents
    )


def text(piece: str, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"text": piece, "finish_reason": reason}]}


def delta(reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"delta": fields, "finish_reason": reason}]}


def read(*pieces: bytes) -> Record:
    record = Record(due=0.0)
    answer = AnswerStream(record)
    for number, piece in enumerate(pieces, 1):
        answer.feed(piece, float(number))
    answer.close()
    return record


def test_each_piece_has_the_time_at_which_its_line_was_whole() -> None:
    first, second = events(text("a")), events(text("b", "stop"), "[DONE]")
    record = read(b": ping\n\n" + first[:9], first[9:], second)
    assert record.piece_times == [2.0, 3.0]
    assert (record.end, record.text, record.is_good) == (3.0, "ab", True)


def test_tokens_without_text_count_and_a_mere_end_does_not() -> None:
    record = read(events(text("")), events(text("b")), events(text("", "length")))
    assert record.piece_times == [1.0, 2.0]
    assert (record.end, record.is_good) == (3.0, True)


def test_a_chats_role_is_no_token_and_thoughts_are() -> None:
    record = read(
        events(delta(role="assistant", content="")),
        events(delta(reasoning_content="so")),
        events(delta(content="Hi")),
        events(delta("stop")),
    )
    assert record.piece_times == [2.0, 3.0]
    assert (record.text, record.is_good) == ("soHi", True)


def test_the_servers_counts_are_taken_wherever_they_stand() -> None:
    details = {"cached_tokens": 1}
    usage = {
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": details}
    }
    for stream in ([text("a", "stop"), {"choices": [], **usage}], [text("a", "stop") | usage]):
        record = read(events(*stream))
        assert (record.num_prompt_tokens, record.num_output_tokens) == (3, 2)
        assert record.num_cached_tokens == 1


def test_an_error_in_the_stream_is_a_failure() -> None:
    record = read(events(text("a"), {"error": {"message": "worker lost", "code": 503}}, "[DONE]"))
    assert (record.error, record.is_good) == ("worker lost", False)


def test_an_answer_without_an_end_is_not_over() -> None:
    assert not read(events(text("a"))).is_over
    assert read(events(text("a"), "[DONE]")).is_good
    assert not read(events("[DONE]")).is_over


def test_what_is_no_event_raises() -> None:
    with pytest.raises(ValueError, match="an event is '3', but must be an object"):
        read(b"data: 3\n\n")
