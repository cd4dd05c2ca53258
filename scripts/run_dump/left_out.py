"""What a dump leaves out, and why: all that differs between two runs of the same tree.

An entry of a dump has a path, such as `trace/chat-streamed/POST …/route/attributes/pagemesh.route.seconds`. What a rule
hides has no value but stays in the dump, so that it is noticed when it goes; what a rule drops may be there or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

Value = str | int | float | bool | None
Entry = tuple[str, Value]
Dump = dict[str, Value]

HIDDEN: Final = "…"
"""The value of what has another one each time."""


@dataclass(frozen=True)
class Rule:
    """Paths, all of which match a regular expression, and what makes them differ."""

    pattern: str
    reason: str
    drops: bool = False

    def matches(self, path: str) -> bool:
        """Whether it is about the whole path."""
        return re.fullmatch(self.pattern, path) is not None


_MEASURED: Final = "a time or rate that was measured"
_CHUNKS: Final = (
    "tokens that wait while the router is busy share a chunk, and bodies are compressed"
)
_SO_FAR: Final = "depends on how many tokens there were when the client left or the worker died"
_NOT_DROPPED: Final = "the router may ask before the kvstore has dropped the dead worker"

RULES: Final = (
    Rule(r"answers/.*/created", "the time of day"),
    # Traces.
    Rule(r"trace/.*/gen_ai\.latency\..*", _MEASURED),
    Rule(r"trace/.*/gen_ai\.response\.time_to_first_chunk", _MEASURED),
    Rule(r"trace/.*[./](predicted_)?seconds", _MEASURED),
    Rule(r"trace/.*/pagemesh\.route\.considered/.*/(predicted_ttft|total)", _MEASURED),
    Rule(r"trace/.*/attributes/response_size", _CHUNKS),
    Rule(r"trace/.*/resource/service\.instance\.id", "drawn at the start of each process"),
    Rule(r"trace/cancelled/.*/gen_ai\.usage\.output_tokens", _SO_FAR),
    Rule(r"trace/killed/.*/submit.*/.*_tokens", _SO_FAR),
    Rule(r"trace/killed/.*/(prefill|lookup).*/attributes/pagemesh\.kv\.(blocks|bytes)", _SO_FAR),
    Rule(
        r"trace/killed/.*/(lookup/.*/pagemesh\.kv\.holders|route.*/pagemesh\.prefix\.available)",
        _NOT_DROPPED,
    ),
    Rule(r"trace/killed/.*/route.*/pagemesh\.route\.refused/.*", _NOT_DROPPED, drops=True),
    # Metrics.
    Rule(
        r"metrics/counts/.*/(process|python)_.*",
        "what the operating system and Python say of a process",
        drops=True,
    ),
    Rule(r"metrics/gauges/.*/process_.*", "what the operating system says of a process"),
    Rule(
        r"metrics/counts/.*/pagemesh:index_digests_total.*",
        "workers send digests by the clock",
        drops=True,
    ),
    Rule(
        r"metrics/counts/.*/pagemesh:(borrowed_core|core_wait)_seconds_total.*",
        _MEASURED,
        drops=True,
    ),
    Rule(r"metrics/gauges/.*/pagemesh:(prefill_seconds|link)_.*", _MEASURED),
    Rule(r"metrics/gauges/.*/vllm:avg_.*_throughput_.*", _MEASURED),
    Rule(
        r"metrics/counts/killed/router/pagemesh:routing_decisions_total.*outcome=(less|most),.*",
        _NOT_DROPPED,
        drops=True,
    ),
    Rule(
        r"metrics/counts/killed/decode/.*",
        "what a decode worker counted ends with it",
        drops=True,
    ),
    Rule(
        r"metrics/counts/killed/prefill/.*(tokens|blocks|bytes|queries)_.*",
        _SO_FAR,
    ),
    Rule(
        r"metrics/counts/cancelled/(router|decode)/vllm:"
        r"(generation_tokens|iteration_tokens|inter_token_latency|time_per_output_token)_.*",
        _SO_FAR,
    ),
    Rule(r"metrics/counts/(cancelled|killed)/kvstore/pagemesh:index_blocks_stored_.*", _SO_FAR),
    # Logs.
    Rule(r"logs/.*/(timestamp|time)", "the time of day"),
    Rule(r"logs/.*/epoch", "the time of a worker's start"),
    Rule(
        r"logs/.*/revision", "in which order workers registered, and how often their load changed"
    ),
    Rule(r"logs/.*/engine_request_id", "numbers the requests of each worker"),
    Rule(r"logs/.*/((read_|measure_)?seconds|duration_ms|first_byte_ms)", _MEASURED),
    Rule(r"logs/.*/info memory/(activation|model)_bytes", "memory that was measured"),
    Rule(r"logs/.*/bytes_out", _CHUNKS),
    Rule(r"logs/.*/cancelled/info request ended/num_completion_tokens", _SO_FAR),
    Rule(r"logs/pagemesh up/.*/still starting .*", "how long the start takes", drops=True),
)


def left_out(entries: Iterable[Entry], rules: Iterable[Rule] = RULES) -> Dump:
    """The entries without what the rules name."""
    rules = tuple(rules)
    found: dict[str, Value] = {}
    for path, value in entries:
        rule = next((rule for rule in rules if rule.matches(path)), None)
        if rule is None:
            found[path] = value
        elif not rule.drops:
            found[path] = HIDDEN
    return found
