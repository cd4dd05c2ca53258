"""The parts of the generation path that need no worker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import INVALID_SPAN

from pagemesh.errors import ContextLengthError, OverloadedError
from pagemesh.router.call import Call
from pagemesh.router.dispatch.waiting_room import WaitingRoom
from pagemesh.router.generation.admission import Admission
from pagemesh.router.generation.choice_text import ChoiceText
from pagemesh.router.generation.idle import IdleClock
from pagemesh.router.generation.limits import resolve_max_tokens
from pagemesh.router.generation.request import Choice, ChoiceDelta, GenerationRequest, StopReason
from pagemesh.sampling.params import SamplingParams
from pagemesh.telemetry.metrics import Metrics
from pagemesh.tokenizer import Tokenizer
from tests.support.word_tokenizer import word_tokenizer

IM_END = 2


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer(demo_model)


def limit(
    num_prompt_tokens: int,
    asked: int | None = None,
    default: int | None = None,
    most: int | None = None,
) -> int:
    return resolve_max_tokens(
        num_prompt_tokens,
        100,
        asked,
        default,
        most,
        prompt_field="messages",
        limit_field="max_completion_tokens",
    )


def test_the_room_in_the_context_is_the_limit_without_any_other() -> None:
    assert limit(40) == 60
    assert limit(99) == 1


def test_a_default_is_cut_to_the_room_but_a_wish_is_not() -> None:
    assert limit(40, default=16) == 16
    assert limit(90, default=16) == 10
    assert limit(40, asked=60) == 60
    with pytest.raises(ContextLengthError) as error:
        limit(40, asked=61)
    assert error.value.param == "max_completion_tokens"
    assert error.value.message == (
        "This model's maximum context length is 100 tokens. However, max_completion_tokens is 61, and behind the"
        " prompt's 40 there is room for 60."
    )


def test_the_operators_limit_cuts_wishes_and_defaults() -> None:
    assert limit(40, most=20) == 20
    assert limit(90, most=20) == 10
    assert limit(40, default=30, most=20) == 20
    assert limit(40, asked=30, most=20) == 20
    assert limit(40, asked=10, most=20) == 10
    # As in vLLM, also what would not fit into the context.
    assert limit(40, asked=61, most=20) == 20


@pytest.mark.parametrize("num_prompt_tokens", [100, 5000])
def test_a_prompt_that_fills_the_context_is_refused(num_prompt_tokens: int) -> None:
    with pytest.raises(ContextLengthError) as error:
        limit(num_prompt_tokens)
    assert error.value.param == "messages"
    assert error.value.message == (
        "This model's maximum context length is 100 tokens. However, the prompt has"
        f" {num_prompt_tokens}, and can have at most 99."
    )


def test_only_so_many_requests_are_admitted() -> None:
    metrics = Metrics()
    admission = Admission(WaitingRoom(2), [], metrics)
    with admission.place():
        with admission.place(), pytest.raises(OverloadedError, match="2 requests"):
            admission.place().__enter__()
        with admission.place():
            pass
    labels = {"model_name": "", "engine": "0", "reason": "max_num_queued_reqs"}
    value = metrics.registry.get_sample_value
    assert value("vllm:admission_rejections_total", labels) == 1
    assert value("pagemesh:requests_refused_total", {"reason": "queue_full"}) == 1


async def ids_of(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(await tokenizer.encode(text, add_special_tokens=False))


def choice_text(
    tokenizer: Tokenizer,
    stop: tuple[str, ...] = (),
    *,
    index: int = 0,
    min_tokens: int = 0,
    stop_token_ids: tuple[int, ...] = (),
    prompt_token_ids: tuple[int, ...] = (1,),
    logprobs: int | None = None,
    **text: Any,
) -> ChoiceText:
    call = Call("r", INVALID_SPAN, 0.0, 0)
    sampling = SamplingParams(
        min_tokens=min_tokens, stop_token_ids=stop_token_ids, logprobs=logprobs
    )
    choices = (Choice(prompt_token_ids, sampling),) * (index + 1)
    request = GenerationRequest(call, choices, 1, stop, 0, **text)
    return ChoiceText(index, tokenizer, request)


async def test_a_stop_token_is_counted_but_has_no_text(tokenizer: Tokenizer) -> None:
    ids = await ids_of(tokenizer, "ab")
    text = choice_text(tokenizer)
    delta = text.push((*ids, ids[-1]), StopReason.STOP)
    assert delta == ChoiceDelta(0, "ab", (*ids, ids[-1]), StopReason.STOP)
    assert text.num_tokens == len(ids) + 1


async def test_the_last_token_of_a_full_answer_has_text(tokenizer: Tokenizer) -> None:
    ids = await ids_of(tokenizer, "ab")
    delta = choice_text(tokenizer).push(ids, StopReason.LENGTH)
    assert delta == ChoiceDelta(0, "ab", ids, StopReason.LENGTH)


async def test_a_stop_string_ends_the_choice_at_the_token_that_completes_it(
    tokenizer: Tokenizer,
) -> None:
    ids = await ids_of(tokenizer, "one two three")
    text = choice_text(tokenizer, (" two",), index=3)
    delta = text.push(ids, None)
    assert (delta.index, delta.text, delta.stop_reason) == (3, "one", StopReason.STOP)
    assert tokenizer.decode(delta.token_ids) == "one two"
    assert text.num_tokens == len(delta.token_ids)


async def test_what_ended_a_choice_is_told(tokenizer: Tokenizer) -> None:
    ids = await ids_of(tokenizer, "one two")
    delta = choice_text(tokenizer, ("x", " two")).push(ids, None)
    assert (delta.stop_string, delta.stop_token_id) == (" two", None)
    delta = choice_text(tokenizer, stop_token_ids=(5, ids[-1])).push(ids, StopReason.STOP)
    assert (delta.stop_string, delta.stop_token_id) == (None, ids[-1])
    delta = choice_text(tokenizer, stop_token_ids=(5,)).push(ids, StopReason.STOP)
    assert (delta.stop_string, delta.stop_token_id) == (None, None)
    delta = choice_text(tokenizer, stop_token_ids=(5, ids[-1])).push(ids, StopReason.LENGTH)
    assert (delta.stop_string, delta.stop_token_id) == (None, None)


async def test_what_ended_a_choice_is_part_of_its_text_if_asked_for(tokenizer: Tokenizer) -> None:
    ids = await ids_of(tokenizer, "one two three")
    text = choice_text(tokenizer, (" two",), includes_stop=True)
    assert "".join(text.push((token_id,), None).text for token_id in ids[:2]) == "one two"
    shown = choice_text(tokenizer, includes_stop=True, hidden_token_ids=frozenset())
    assert shown.push((*ids[:1], IM_END), StopReason.STOP).text == "one<|im_end|>"
    # A special token has no text of its own accord.
    hidden = choice_text(tokenizer, includes_stop=True)
    assert hidden.push((*ids[:1], IM_END), StopReason.STOP).text == "one"


async def test_stop_strings_wait_for_min_tokens(tokenizer: Tokenizer) -> None:
    ids = await ids_of(tokenizer, "one two one two")
    first = await ids_of(tokenizer, "one two")
    delta = choice_text(tokenizer, (" two",), min_tokens=len(first)).push(ids, None)
    assert delta.text == "one two one"


async def test_held_back_text_comes_with_the_end(tokenizer: Tokenizer) -> None:
    ids = await ids_of(tokenizer, "one tw")
    text = choice_text(tokenizer, (" two",))
    assert text.push(ids, None).text == "one"
    assert text.push((IM_END,), StopReason.STOP).text == " tw"


def test_a_text_follows_its_prompt_and_has_places_for_log_probabilities(tmp_path: Path) -> None:
    words = word_tokenizer(tmp_path)
    text = choice_text(words, prompt_token_ids=(6, 4), logprobs=0)
    delta = text.push((5, 6), None)
    assert (delta.text, delta.places) == (" world", ((0, 6), (6, 6)))
    assert choice_text(words, prompt_token_ids=(6,)).push((5,), None).places == ()


async def test_silence_is_noticed_first_soon_and_then_rarely() -> None:
    loop = asyncio.get_running_loop()
    noticed: asyncio.Queue[float] = asyncio.Queue()
    start = loop.time()
    clock = IdleClock(lambda: noticed.put_nowait(loop.time() - start), first=0.05, then=0.2)
    times = [await asyncio.wait_for(noticed.get(), 10) for _ in range(2)]
    clock.close()
    assert times[0] >= 0.05
    assert times[1] - times[0] >= 0.19


async def test_a_sign_of_life_puts_silence_off() -> None:
    loop = asyncio.get_running_loop()
    noticed: asyncio.Queue[float] = asyncio.Queue()
    clock = IdleClock(lambda: noticed.put_nowait(loop.time()), first=0.01, then=0.1)
    clock.sign()
    signed = loop.time()
    assert await asyncio.wait_for(noticed.get(), 10) - signed >= 0.09
    clock.close()
