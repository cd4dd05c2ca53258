"""Traces made by rule: shared prefixes, chats as in ShareGPT, long prompts as in Mooncake's traces.

All draws come from one seed; arrivals have a mean of one request a second and are scaled afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from pagemesh.sim.lengths import MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS, Zipf, draw_length
from pagemesh.sim.mooncake import BLOCK_TOKENS, MooncakeRequest, trace_of
from pagemesh.sim.settings import WorkloadConfig
from pagemesh.sim.sharegpt import Conversation, Turn, converse
from pagemesh.sim.trace import Span, Trace, TraceRequest
from pagemesh.workload.arrivals import arrival_times

_PROMPT_SIGMA: Final = 1.1
_OUTPUT_SIGMA: Final = 0.9
"""Of the logarithms of lengths: as in the histograms of ShareGPT's conversations in the paper of vLLM (Kwon et al.
2023, figure 11)."""

_CONTINUES: Final = 0.6
"""Share of Mooncake-style requests that go on where an earlier one was."""

_OPEN_SESSIONS: Final = 200
"""Those that may be gone on with, the latest ones."""


def make_trace(config: WorkloadConfig) -> Trace:
    """The workload of this name; arrivals as for one request a second."""
    return _MAKERS[config.workload](config)


def shared_prefix(config: WorkloadConfig) -> Trace:
    """Each request is one of `prefixes` system prompts, by popularity, and a question of its own."""
    draws = random.Random(config.seed)
    popularity = Zipf(config.prefixes, config.zipf)
    times = arrival_times(config.burstiness, draws)
    requests = []
    for number in range(config.num_prompts):
        question = draw_length(draws, config.prompt_tokens, _PROMPT_SIGMA, MAX_PROMPT_TOKENS)
        own = config.prefixes + number
        spans = [Span(own, config.prefix_tokens + question)]
        prefix = popularity.draw(draws)
        if config.prefix_tokens:
            spans.insert(0, Span(prefix, config.prefix_tokens))
        requests.append(TraceRequest(next(times), tuple(spans), _output(config, draws), own))
    return requests


def make_conversations(config: WorkloadConfig) -> list[Conversation]:
    """Chats with a geometric number of turns, each a message and its answer."""
    draws = random.Random(config.seed)
    num_left, conversations = config.num_prompts, []
    while num_left:
        turns = []
        while num_left:
            message = draw_length(draws, config.prompt_tokens, _PROMPT_SIGMA, MAX_PROMPT_TOKENS)
            turns.append(Turn(message, _output(config, draws)))
            num_left -= 1
            if draws.random() < 1 / config.turns:
                break
        conversations.append(Conversation(turns))
    return conversations


def make_mooncake(config: WorkloadConfig) -> list[MooncakeRequest]:
    """Long prompts: some new, behind a popular beginning, some an earlier prompt with more behind it.

    `prompt_tokens` is the median of what is new; the published traces have prompts of 7 to 14 thousand tokens on
    average, of which about half were there before (Mooncake, Qin et al. 2024, sections 4 and 5).
    """
    draws = random.Random(config.seed)
    popularity = Zipf(config.prefixes, config.zipf)
    times = arrival_times(config.burstiness, draws)
    prefix_blocks = config.prefix_tokens // BLOCK_TOKENS
    next_id = config.prefixes * prefix_blocks
    sessions: list[list[int]] = []
    requests = []
    for _ in range(config.num_prompts):
        if sessions and draws.random() < _CONTINUES:
            known = sessions.pop(draws.randrange(len(sessions)))
        else:
            first = popularity.draw(draws) * prefix_blocks
            known = list(range(first, first + prefix_blocks))
        added = draw_length(draws, config.prompt_tokens, _PROMPT_SIGMA, MAX_PROMPT_TOKENS)
        num_new = -(-added // BLOCK_TOKENS)
        hash_ids = [*known, *range(next_id, next_id + num_new)]
        next_id += num_new
        # A full last block is what a later prompt goes on behind.
        sessions.append(hash_ids if added % BLOCK_TOKENS == 0 else hash_ids[:-1])
        del sessions[: max(0, len(sessions) - _OPEN_SESSIONS)]
        input_length = len(known) * BLOCK_TOKENS + added
        timestamp = round(next(times) * 1000)
        output_length = _output(config, draws)
        requests.append(MooncakeRequest(timestamp, input_length, output_length, tuple(hash_ids)))
    return requests


def _sharegpt(config: WorkloadConfig) -> Trace:
    return converse(make_conversations(config), config)


def _mooncake(config: WorkloadConfig) -> Trace:
    return trace_of(make_mooncake(config))


def _output(config: WorkloadConfig, draws: random.Random) -> int:
    return draw_length(draws, config.output_tokens, _OUTPUT_SIGMA, MAX_OUTPUT_TOKENS)


_MAKERS: Final[dict[str, Callable[[WorkloadConfig], Trace]]] = {
    "shared_prefix": shared_prefix,
    "sharegpt": _sharegpt,
    "mooncake": _mooncake,
}
