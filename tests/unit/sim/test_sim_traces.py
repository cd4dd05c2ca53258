"""Traces: how blocks are named, what an endless cache would have, files of both forms, workloads by rule."""

from __future__ import annotations

import itertools
import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from pagemesh.errors import ConfigError
from pagemesh.sim.lengths import Zipf
from pagemesh.sim.mooncake import MooncakeRequest, read_mooncake, trace_of
from pagemesh.sim.settings import WorkloadConfig
from pagemesh.sim.sharegpt import Conversation, Turn, converse, read_sharegpt
from pagemesh.sim.sources import Workload, at_rate, load_workload, write_trace
from pagemesh.sim.trace import SharedCache, Span, TraceRequest, block_names
from pagemesh.sim.workloads import make_conversations, make_mooncake, make_trace
from pagemesh.workload.arrivals import arrival_times
from tests.unit.sim.sim_builders import make_request

LINE = '{"timestamp": 1500, "input_length": 1000, "output_length": 52, "hash_ids": [46, 47]}'


def names(request: TraceRequest, num_blocks: int) -> list[str]:
    """As text of a block's text and number."""
    return [
        f"{int.from_bytes(name[:8], 'little')}:{int.from_bytes(name[8:], 'little')}"
        for name in block_names(request, num_blocks, 10)
    ]


def test_a_block_is_named_by_the_text_of_its_last_token_and_its_number() -> None:
    request = TraceRequest(0.0, (Span(7, 25), Span(8, 41)), 12, output_text=9)
    # 53 tokens: two blocks in text 7, the third ends in 8, the fourth too, the fifth in the answer.
    assert names(request, 5) == ["7:0", "7:1", "8:2", "8:3", "9:4"]
    assert names(request, 3) == ["7:0", "7:1", "8:2"]
    assert {len(name) for name in block_names(request, 5, 10)} == {16}


def test_a_later_turn_has_the_names_of_the_prompt_and_the_answer_in_front_of_it() -> None:
    first = TraceRequest(0.0, (Span(0, 15), Span(1, 30)), 20, output_text=1)
    second = TraceRequest(0.0, (Span(0, 15), Span(1, 70)), 5, output_text=1)
    assert names(second, 7)[:5] == names(first, 5)


def test_an_endless_cache_has_full_blocks_of_what_came_before_and_leaves_the_last_token() -> None:
    cache = SharedCache(10)
    assert cache.visit(make_request(0, 35, 10, text=1, prefix=Span(0, 20))) == 0
    assert cache.visit(make_request(0, 35, 10, text=2, prefix=Span(0, 20))) == 20
    assert cache.visit(make_request(0, 60, 10, text=1, prefix=Span(0, 20))) == 40
    assert cache.visit(make_request(0, 20, 10, text=0)) == 19
    assert cache.visit(make_request(0, 35, 10, text=1, prefix=Span(0, 20))) == 30


def test_a_published_line_is_read() -> None:
    assert read_mooncake("t", [LINE, ""]) == [MooncakeRequest(1500, 1000, 52, (46, 47))]


@pytest.mark.parametrize("block_size", [16, 100, 128, 512, 700, 1024])
def test_blocks_of_any_size_are_shared_as_far_as_ids_are_equal(block_size: int) -> None:
    """Lines as published, with a last block of fewer tokens, which the third goes on behind."""
    lines = [
        '{"timestamp": 27482, "input_length": 1955, "output_length": 52, "hash_ids": [46, 47, 48, 49]}',
        '{"timestamp": 30535, "input_length": 1472, "output_length": 26, "hash_ids": [46, 47, 2366]}',
        '{"timestamp": 30535, "input_length": 2200, "output_length": 9, "hash_ids": [46, 47, 48, 49, 50]}',
    ]
    first, second, third = trace_of(read_mooncake("t", lines))
    assert [request.arrival for request in (first, second, third)] == [0.0, 3.053, 3.053]

    def num_shared(request: TraceRequest, other: TraceRequest) -> int:
        mine, others = (
            block_names(each, each.num_prompt_tokens // block_size, block_size)
            for each in (request, other)
        )
        return sum(a == b for a, b in zip(mine, others, strict=False))

    assert num_shared(first, second) == 1024 // block_size
    assert num_shared(first, third) == 1955 // block_size
    cache = SharedCache(block_size)
    held = [cache.visit(request) for request in (first, second, third)]
    # Of the first one's last block, the third has what there was of it.
    assert held == [block_size * (most // block_size) for most in (0, 1024, 1955)]


def test_equal_ids_behind_equal_ids_are_equal_blocks() -> None:
    trace = trace_of(
        [
            MooncakeRequest(1000, 1024, 1, (5, 6)),
            MooncakeRequest(1500, 1300, 1, (5, 6, 7)),
            MooncakeRequest(2500, 1024, 1, (8, 6)),
        ]
    )
    assert [request.arrival for request in trace] == [0.0, 0.5, 1.5]
    first, second, third = trace
    assert second.prompt[:2] == first.prompt
    assert second.num_prompt_tokens == 1300
    # The same id behind another one.
    assert third.prompt[1] != first.prompt[1]
    assert len({request.output_text for request in trace}) == 3


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nonsense", "line 2: Expecting value"),
        ("[1]", "line 2: it is [1], but must be an object"),
        (LINE.replace("1500", "-1"), "timestamp is -1, but must be from 0 to 10,000,000,000,000"),
        (LINE.replace("1500", "1e300"), "timestamp is 1e+300, but must be from 0 to"),
        (LINE.replace("52", "0"), "output_length is 0, but must be from 1 to 10,000,000"),
        (LINE.replace("52", "1e300"), "output_length is 1e+300, but must be from 1 to"),
        (LINE.replace("1000", "1.5"), "line 2: input_length is 1.5, but must be a whole number"),
        (LINE.replace("[46, 47]", '["a"]'), "hash_ids is \"['a']\", but must be a list of whole"),
        (LINE.replace("[46, 47]", "[46]"), "hash_ids has 1 ids, but input_length is 1000, which"),
        ('{"timestamp": 1}', "line 2: 'input_length' is missing"),
        (LINE.replace("1500", "NaN"), "line 2: timestamp is nan, but must be a whole number"),
        (LINE.replace("1000", "1e999"), "line 2: input_length is inf, but must be a whole number"),
        ("[" * 100_000, "line 2: maximum recursion depth exceeded"),
    ],
)
def test_a_wrong_line_is_named(line: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_mooncake("trace.jsonl", [LINE, line])
    assert reason in refusal.value.message
    assert refusal.value.message.startswith("--trace is 'trace.jsonl': line 2: ")


def messages(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"id": "x", "conversations": [{"from": who, "value": text} for who, text in pairs]}


def test_conversations_are_read_as_turns() -> None:
    content = [
        messages(("system", "s" * 40), ("human", "h" * 80), ("gpt", "g" * 20), ("human", "h" * 8)),
        messages(("human", "never answered")),
        # Cut off from what it answers.
        messages(("gpt", "g" * 99), ("user", "u" * 4), ("assistant", "a" * 400)),
    ]
    assert read_sharegpt("t", content, chars_per_token=4.0) == [
        Conversation([Turn(20, 5)], num_system_tokens=10),
        Conversation([Turn(1, 100)]),
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({}, "which is no list of conversations"),
        ([3], "conversation 0: it is '3', but must be an object"),
        ([{"id": "x"}], "conversation 0: 'conversations' is missing"),
        (
            [messages(("parrot", "x"))],
            "conversation 0: message 0: from is 'parrot', but must be system, human",
        ),
        (
            [messages(), {"conversations": [{"from": "human", "value": 1}]}],
            "conversation 1: message 0: value is '1', but must be text",
        ),
        (
            [{"conversations": [{"from": ["human"], "value": "x"}]}],
            "message 0: from is \"['human']\", but must be text",
        ),
        ([{"conversations": [{"from": "gpt"}]}], "conversation 0: message 0: 'value' is missing"),
        (
            [{"conversations": "none"}],
            "conversation 0: conversations is 'none', but must be a list",
        ),
    ],
)
def test_a_wrong_conversation_is_named(content: object, reason: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_sharegpt("chats.json", content, 4.0)
    assert refusal.value.message.startswith("--trace is 'chats.json'")
    assert reason in refusal.value.message


def test_turns_hold_what_was_said_before() -> None:
    config = WorkloadConfig(prefix_tokens=100, think_time=0.0, burstiness=1e6)
    trace = converse([Conversation([Turn(10, 5), Turn(20, 7)], num_system_tokens=3)], config)
    assert [request.prompt for request in trace] == [
        (Span(0, 100), Span(1, 113)),
        (Span(0, 100), Span(1, 138)),
    ]
    assert [(request.after, request.num_output_tokens) for request in trace] == [(None, 5), (0, 7)]
    # Two turns are two requests: at one a second, a conversation every two seconds.
    assert trace[0].arrival == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(("form", "suffix"), [("mooncake", "jsonl"), ("sharegpt", "json")])
def test_what_is_written_is_read_again(form: Any, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"trace.{suffix}"
    config = WorkloadConfig(workload=form, num_prompts=50, prefix_tokens=1024)
    write_trace(config, str(path))
    read, is_timed = load_workload(WorkloadConfig(trace=str(path), prefix_tokens=1024))
    made = make_trace(config)
    assert is_timed == (form == "mooncake")
    assert [r.num_prompt_tokens for r in read] == [r.num_prompt_tokens for r in made]
    assert [r.num_output_tokens for r in read] == [r.num_output_tokens for r in made]


@pytest.mark.parametrize("content", ["", "  \n", "[]"])
def test_an_empty_trace_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_text(content)
    with pytest.raises(ConfigError, match="which has no requests"):
        load_workload(WorkloadConfig(trace=str(path)))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('[{"conversations" 1}]', "Expecting ':' delimiter: line 1 column 19"),
        ("[" * 100_000, "maximum recursion depth exceeded"),
        # As an editor counts lines.
        (f"{LINE}\n\f\n{LINE}\nnonsense", "line 4: Expecting value"),
    ],
)
def test_a_file_that_is_no_json_is_named(content: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(content)
    with pytest.raises(ConfigError) as refusal:
        load_workload(WorkloadConfig(trace=str(path)))
    assert refusal.value.message.startswith(f"--trace is {str(path)!r}: {reason}")


def test_a_byte_order_mark_is_no_part_of_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(LINE, encoding="utf-8-sig")
    assert len(load_workload(WorkloadConfig(trace=str(path))).trace) == 1


def test_all_requests_at_one_time_have_no_rate_to_scale() -> None:
    timed = Workload(trace_of([MooncakeRequest(7, 10, 1, (n,)) for n in range(3)]), is_timed=True)
    assert [r.arrival for r in at_rate(timed, None, 8)] == [0.0, 0.0, 0.0]
    with pytest.raises(ConfigError, match=r"--request-rate is 4\.0, but all 3 requests of --trace"):
        at_rate(timed, 4.0, 8)
    alone = Workload(timed.trace[:1], is_timed=True)
    assert [r.arrival for r in at_rate(alone, 4.0, 8)] == [0.0]


def test_messages_without_a_character_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with pytest.raises(
        ConfigError, match=r"--chars-per-token is 0\.9, but must be at least 1 with"
    ):
        write_trace(WorkloadConfig(workload="sharegpt", chars_per_token=0.9), str(path))
    assert not path.exists()


def test_a_workload_without_a_form_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with pytest.raises(ConfigError, match="no form of file for --workload shared_prefix"):
        write_trace(WorkloadConfig(), str(path))
    assert not path.exists()


def test_a_trace_with_times_of_its_own_keeps_them_unless_a_rate_is_asked_for() -> None:
    trace = trace_of([MooncakeRequest(1000 * n, 10, 1, (n,)) for n in range(5)])
    timed = Workload(trace, is_timed=True)
    assert [r.arrival for r in at_rate(timed, None, 8)] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [r.arrival for r in at_rate(timed, 4.0, 8)] == [0.0, 0.25, 0.5, 0.75, 1.0]
    made = Workload(trace, is_timed=False)
    assert [r.arrival for r in at_rate(made, None, 8)] == [0.0, 0.125, 0.25, 0.375, 0.5]


def test_equal_seeds_give_equal_workloads_and_others_do_not() -> None:
    for workload in ("shared_prefix", "sharegpt", "mooncake"):
        first, again, other = (
            make_trace(WorkloadConfig(workload=workload, num_prompts=30, seed=seed))
            for seed in (1, 1, 2)
        )
        assert first == again != other
        assert len(first) == 30


def test_conversations_have_the_turns_that_were_asked_for() -> None:
    conversations = make_conversations(WorkloadConfig(num_prompts=4000, turns=4.0))
    turns = [len(conversation.turns) for conversation in conversations]
    assert sum(turns) == 4000
    assert statistics.mean(turns) == pytest.approx(4.0, rel=0.1)


def test_mooncake_style_prompts_go_on_where_others_were() -> None:
    config = WorkloadConfig(workload="mooncake", num_prompts=400, prefix_tokens=1024)
    requests = make_mooncake(config)
    cache = SharedCache(16)
    trace = trace_of(requests)
    held = sum(cache.visit(request) for request in trace)
    assert 0.4 < held / sum(request.num_prompt_tokens for request in trace) < 0.95


@pytest.mark.parametrize(
    ("burstiness", "variation"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5), (1e6, 0.001)]
)
def test_arrivals_have_a_mean_of_a_second_and_vary_as_they_should(
    burstiness: float, variation: float
) -> None:
    times = arrival_times(burstiness, random.Random(1))
    instants = [0.0, *(next(times) for _ in range(20_000))]
    gaps = [later - earlier for earlier, later in itertools.pairwise(instants)]
    assert statistics.mean(gaps) == pytest.approx(1.0, rel=0.06)
    assert statistics.pstdev(gaps) == pytest.approx(variation, rel=0.1)


def test_arrivals_are_a_poisson_process_unless_bursts_are_asked_for() -> None:
    draws = random.Random(WorkloadConfig().seed)
    times = arrival_times(WorkloadConfig().burstiness, draws)
    gaps = [
        later - earlier for earlier, later in itertools.pairwise(next(times) for _ in range(20_000))
    ]
    # Of exponential gaps, 1 - 1/e are shorter than their mean.
    assert sum(gap < 1.0 for gap in gaps) / len(gaps) == pytest.approx(0.632, rel=0.02)


def test_the_most_popular_thing_comes_in_proportion() -> None:
    draws, zipf = random.Random(1), Zipf(3, 1.0)
    drawn = [zipf.draw(draws) for _ in range(11_000)]
    # 1 : 1/2 : 1/3
    assert [drawn.count(n) for n in range(3)] == pytest.approx([6000, 3000, 2000], rel=0.06)
