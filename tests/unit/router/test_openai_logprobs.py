"""Log probabilities in answers, whole and in chunks, as OpenAI's own client reads them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from pagemesh.router.chat.answer import ChatAnswer
from pagemesh.router.chat.choice_reader import ChoiceReader
from pagemesh.router.generation.request import ChoiceDelta, StopReason, Usage
from pagemesh.router.openai.answer_options import AnswerOptions
from pagemesh.router.openai.chat_response import ChatResponder
from pagemesh.router.openai.completion_response import CompletionResponder
from pagemesh.router.openai.echo import EchoResponder
from pagemesh.router.openai.logprobs import EchoedPrompt, TokenNames
from pagemesh.router.openai.responses import CollectedChoice, best_choices
from pagemesh.router.parsers.factory import PlainParser
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.tokenizer.detokenizer import TokenPlace
from tests.support.late_imports import openai

USAGE = Usage(num_prompt_tokens=5, num_completion_tokens=3, num_cached_tokens=4)
TEXTS: dict[int, str | bytes] = {
    1: "He",
    2: "llö",
    3: " you",
    4: "llö",
    5: b"\xf0\x9f",
    6: b"\x98",
    7: b"\x80",
    8: b"\xf0",
}

FIRST = TokenLogprobs(1, -0.25, 1, (1, 3), (-0.25, -2.0))
SECOND = TokenLogprobs(2, -5.5, 3, (3, 4), (-0.5, -1.5))
IMPOSSIBLE = TokenLogprobs(3, -math.inf, 9)


def answer(*args: Any, **kwargs: Any) -> ChatAnswer:
    """Of up to two choices, whose text is all content."""
    return ChatAnswer(
        ChatResponder(*args, **kwargs), [ChoiceReader(PlainParser()) for _ in range(2)]
    )


def token_bytes(token_id: int) -> bytes:
    text = TEXTS[token_id]
    return text if isinstance(text, bytes) else text.encode()


NAMES = TokenNames(token_bytes)
IDS = TokenNames(token_bytes, are_ids=True)


def chat(names: TokenNames = NAMES) -> ChatAnswer:
    return answer("r1", 1, "demo", AnswerOptions(names, has_logprobs=True))


def completion(names: TokenNames = NAMES) -> CompletionResponder:
    return CompletionResponder("r1", 1, "demo", AnswerOptions(names, has_logprobs=True))


def collected(*scores: TokenLogprobs) -> CollectedChoice:
    starts = range(0, 2 * len(scores), 2)
    places = [TokenPlace(start, start + 2) for start in starts]
    return CollectedChoice(["Hello"], StopReason.STOP, list(scores), places=places)


def delta(
    text: str, *scores: TokenLogprobs, stop: StopReason | None = None, start: int = 0
) -> ChoiceDelta:
    """Tokens of three characters each, the first of them at `start`."""
    places = tuple(TokenPlace(start + 3 * i, start + 3 * i + 3) for i in range(len(scores)))
    ids = tuple(s.token_id for s in scores)
    return ChoiceDelta(0, text, ids, stop, logprobs=scores, places=places)


def chunks(frames: bytes) -> list[Any]:
    return [
        json.loads(line.removeprefix("data: ")) for line in frames.decode().split("\n\n") if line
    ]


def test_a_whole_chat_answer_names_tokens_with_their_bytes() -> None:
    body = chat().whole([collected(FIRST, SECOND)], USAGE)
    openai.types.chat.ChatCompletion.model_validate(body, strict=True)
    assert body["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "He",
                "logprob": -0.25,
                "bytes": [72, 101],
                "top_logprobs": [
                    {"token": "He", "logprob": -0.25, "bytes": [72, 101]},
                    {"token": " you", "logprob": -2.0, "bytes": [32, 121, 111, 117]},
                ],
            },
            {
                "token": "llö",
                "logprob": -5.5,
                "bytes": [108, 108, 195, 182],
                "top_logprobs": [
                    {"token": " you", "logprob": -0.5, "bytes": [32, 121, 111, 117]},
                    {"token": "llö", "logprob": -1.5, "bytes": [108, 108, 195, 182]},
                ],
            },
        ],
        "refusal": None,
    }


def test_a_whole_completion_names_tokens_with_their_places() -> None:
    body = completion().whole([collected(FIRST, SECOND), collected(SECOND)], USAGE)
    openai.types.Completion.model_validate(body, strict=True)
    first, second = (choice["logprobs"] for choice in body["choices"])
    assert first == {
        "tokens": ["He", "llö"],
        "token_logprobs": [-0.25, -5.5],
        # The token that was sampled has the text of a likelier one, which is named by its id.
        "top_logprobs": [
            {"He": -0.25, " you": -2.0},
            {"llö": -5.5, " you": -0.5, "token_id:4": -1.5},
        ],
        "text_offset": [0, 2],
    }
    assert second["text_offset"] == [0]


def test_the_logarithm_of_zero_is_a_number() -> None:
    choice = chat().whole([collected(IMPOSSIBLE)], USAGE)["choices"][0]
    assert choice["logprobs"]["content"][0]["logprob"] == -9999.0
    choice = completion().whole([collected(IMPOSSIBLE)], USAGE)["choices"][0]
    assert choice["logprobs"]["token_logprobs"] == [-9999.0]


def test_a_chat_stream_has_each_token_of_the_content_once_with_its_text() -> None:
    responder = chat()
    frames = responder.events(delta("Hel", FIRST)) + responder.events(delta("", SECOND, start=3))
    frames += responder.events(delta("lo", IMPOSSIBLE, stop=StopReason.STOP, start=6))
    found = []
    for chunk in chunks(frames):
        openai.types.chat.ChatCompletionChunk.model_validate(chunk, strict=True)
        choice = chunk["choices"][0]
        tokens = choice["logprobs"] and [each["token"] for each in choice["logprobs"]["content"]]
        found.append((choice["delta"].get("content"), tokens, choice["finish_reason"]))
    assert found == [
        ("", None, None),
        ("Hel", ["He"], None),
        ("lo", ["llö"], None),
        (None, None, "stop"),
    ]


def test_a_completion_stream_counts_the_places_on() -> None:
    responder = completion()
    frames = responder.events(delta("Hel", FIRST)) + responder.events(delta("", SECOND, start=3))
    frames += responder.events(delta("lo", FIRST, stop=StopReason.STOP, start=5))
    found = [chunk["choices"][0] for chunk in chunks(frames)]
    assert [choice["text"] for choice in found] == ["Hel", "", "lo"]
    assert [choice["logprobs"]["text_offset"] for choice in found] == [[0], [3], [5]]


def test_no_place_is_behind_a_text_that_a_stop_string_cut_off() -> None:
    responder = completion()
    frames = responder.events(delta("", FIRST, SECOND)) + responder.events(
        delta("", FIRST, start=6)
    )
    # What is told first may be the whole text.
    frames += responder.events(delta("He", FIRST, stop=StopReason.STOP, start=9))
    found = [chunk["choices"][0] for chunk in chunks(frames)]
    assert [choice["logprobs"]["text_offset"] for choice in found] == [[0], [2, 2, 2]]
    (whole,) = completion().whole(
        [replace(collected(FIRST, SECOND, FIRST, SECOND), text=["Hel"])], USAGE
    )["choices"]
    assert whole["logprobs"]["text_offset"] == [0, 2, 3, 3]


PARTS = TokenLogprobs(5, -0.5, 1, (5, 8, 2, 4), (-0.5, -1.0, -1.5, -2.0))


def test_parts_of_characters_have_their_own_bytes_and_each_token_one_key() -> None:
    (entry,) = chat().whole([collected(PARTS)], USAGE)["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["bytes"]) == ("\ufffd", [0xF0, 0x9F])
    assert [rival["bytes"] for rival in entry["top_logprobs"][:2]] == [[0xF0, 0x9F], [0xF0]]
    found = completion().whole([collected(PARTS)], USAGE)["choices"][0]["logprobs"]
    assert found["tokens"] == ["bytes:\\xf0\\x9f"]
    # Tokens with the same text are told apart by their ids.
    assert found["top_logprobs"] == [
        {"bytes:\\xf0\\x9f": -0.5, "bytes:\\xf0": -1.0, "llö": -1.5, "token_id:4": -2.0}
    ]


def test_tokens_as_ids_keep_their_bytes_and_their_places() -> None:
    (entry,) = chat(IDS).whole([collected(FIRST)], USAGE)["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["bytes"]) == ("token_id:1", [72, 101])
    assert [rival["token"] for rival in entry["top_logprobs"]] == ["token_id:1", "token_id:3"]
    choices = [collected(FIRST, SECOND)]
    choices[0].prompt_logprobs = [FIRST]
    (choice,) = completion(IDS).whole(choices, USAGE)["choices"]
    assert choice["logprobs"] == {
        "tokens": ["token_id:1", "token_id:2"],
        "token_logprobs": [-0.25, -5.5],
        "top_logprobs": [
            {"token_id:1": -0.25, "token_id:3": -2.0},
            {"token_id:2": -5.5, "token_id:3": -0.5, "token_id:4": -1.5},
        ],
        "text_offset": [0, 2],
    }
    # Ids are the keys there, and vLLM says what they stand for.
    assert choice["prompt_logprobs"][1][1]["decoded_token"] == "He"


def test_without_being_asked_nothing_is_said_about_tokens() -> None:
    plain = answer("r1", 1, "demo", AnswerOptions(NAMES))
    assert plain.whole([collected(FIRST)], USAGE)["choices"][0]["logprobs"] is None
    assert [c["choices"][0]["logprobs"] for c in chunks(plain.events(delta("He", FIRST)))] == [
        None,
        None,
    ]


def test_prompts_are_scored_as_in_vllm() -> None:
    choices = [collected(FIRST), collected(FIRST)]
    choices[0].prompt_logprobs = [SECOND, FIRST]
    expected = [
        None,
        {
            2: {"logprob": -5.5, "rank": 3, "decoded_token": "llö"},
            3: {"logprob": -0.5, "rank": 1, "decoded_token": " you"},
            4: {"logprob": -1.5, "rank": 2, "decoded_token": "llö"},
        },
        {
            1: {"logprob": -0.25, "rank": 1, "decoded_token": "He"},
            3: {"logprob": -2.0, "rank": 2, "decoded_token": " you"},
        },
    ]
    given = best_choices(choices, 1, 2)
    body = completion().whole(given, USAGE)
    assert [choice["prompt_logprobs"] for choice in body["choices"]] == [expected, expected]
    assert chat().whole(given, USAGE)["prompt_logprobs"] == expected
    # As in vLLM, what nobody asked for is null.
    for body in (
        chat().whole([collected(FIRST)], USAGE),
        completion().whole([collected(FIRST)], USAGE)["choices"][0],
    ):
        assert (body["prompt_logprobs"], body["prompt_token_ids"]) == (None, None)
    (choice,) = chat().whole([collected(FIRST)], USAGE)["choices"]
    assert choice["token_ids"] is None


def test_the_best_answers_to_each_prompt_are_kept() -> None:
    choices = [collected(FIRST, SECOND), collected(FIRST), collected(SECOND)]
    choices += [collected(SECOND), collected(FIRST), collected(FIRST, FIRST)]
    assert best_choices(choices, 2, 2) == [choices[i] for i in (1, 2, 4, 5)]
    assert best_choices(choices, 2, 3) == choices


def test_an_echo_waits_for_the_log_probabilities_that_another_answer_brings() -> None:
    echo = EchoResponder(
        completion(),
        [EchoedPrompt("Hello", (1, 2), (0, 2))],
        2,
        only_prompts=False,
        num_logprobs=1,
        gives_prompt_logprobs=False,
        tokens=NAMES,
    )
    assert echo.events(replace(delta("B", FIRST), index=1)) == b""
    told = chunks(echo.events(replace(delta("A", FIRST), prompt_logprobs=(SECOND,))))
    choices = [chunk["choices"][0] for chunk in told]
    assert [(choice["index"], choice["text"]) for choice in choices] == [
        (0, "Hello"), (0, "A"), (1, "Hello"), (1, "B"),
    ]  # fmt: skip
    assert choices[0]["logprobs"]["token_logprobs"] == [None, -5.5]
    assert choices[0]["logprobs"]["text_offset"] == [0, 2]
    assert choices[1]["logprobs"]["text_offset"] == [5]
    assert choices[2]["logprobs"]["token_logprobs"] == [None, -5.5]
    (late,) = chunks(echo.events(replace(delta("C", FIRST), index=1)))
    assert late["choices"][0]["text"] == "C"
