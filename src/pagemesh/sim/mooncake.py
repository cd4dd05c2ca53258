"""Traces in the form that Mooncake published: a JSON object a line, with the names of 512-token blocks.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, …]}

`timestamp` is in milliseconds; equal ids stand for blocks with equal tokens in them and in front of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pagemesh.errors import ConfigError
from pagemesh.sim.settings import MAX_SECONDS, MAX_TOKENS
from pagemesh.sim.trace import Span, Trace, TraceRequest

BLOCK_TOKENS: Final = 512
"""Tokens of a block of these traces; the last one of a prompt may have fewer."""


class MooncakeRequest(NamedTuple):
    """A line."""

    timestamp: int
    """Milliseconds."""
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_mooncake(path: str, lines: Iterable[str]) -> list[MooncakeRequest]:
    """All requests, in order of time; ConfigError naming the line that is wrong."""
    requests = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                requests.append(_request(line))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
                raise ConfigError(f"--trace is {path!r}: line {number}: {reason}") from None
    return sorted(requests, key=lambda request: request.timestamp)


def write_mooncake(path: str, requests: Iterable[MooncakeRequest]) -> None:
    """The file that `read_mooncake` reads."""
    text = "".join(json.dumps(request._asdict()) + "\n" for request in requests)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--write-trace is {path!r}: {error.strerror}") from error


def trace_of(requests: Sequence[MooncakeRequest]) -> Trace:
    """The requests; what is generated is part of no other prompt, as the form cannot tell."""
    texts: dict[tuple[int, int], int] = {}
    num_texts = 0
    trace = []
    begins_at = requests[0].timestamp if requests else 0
    for request in requests:
        spans, text = [], -1
        for index, hash_id in enumerate(request.hash_ids):
            # An id names what is in front of it, too; this holds even where it does not.
            known = texts.get((text, hash_id))
            if known is None:
                known = texts[text, hash_id] = num_texts
                num_texts += 1
            text = known
            spans.append(Span(text, min((index + 1) * BLOCK_TOKENS, request.input_length)))
        arrival = (request.timestamp - begins_at) / 1000
        trace.append(TraceRequest(arrival, tuple(spans), request.output_length, num_texts))
        num_texts += 1
    return trace


def _request(line: str) -> MooncakeRequest:
    entry: Any = json.loads(line)
    if not isinstance(entry, dict):
        raise TypeError(f"it is {entry!r}, but must be an object")
    request = MooncakeRequest(
        _whole(entry, "timestamp", 0, 1000 * MAX_SECONDS),
        _whole(entry, "input_length", 1, MAX_TOKENS),
        _whole(entry, "output_length", 1, MAX_TOKENS),
        tuple(_ids(entry)),
    )
    num_blocks = -(-request.input_length // BLOCK_TOKENS)
    if len(request.hash_ids) != num_blocks:
        raise ValueError(
            f"hash_ids has {len(request.hash_ids)} ids, but input_length is {request.input_length},"
            f" which makes {num_blocks} blocks of {BLOCK_TOKENS}"
        )
    return request


def _whole(entry: dict[str, Any], name: str, least: int, most: int) -> int:
    value = entry[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # 1.0 is one; there are no infinite ones.
    if not is_number or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(f"{name} is {value!r}, but must be a whole number")
    if not least <= value <= most:
        raise ValueError(f"{name} is {value!r}, but must be from {least:,} to {most:,}")
    return int(value)


def _ids(entry: dict[str, Any]) -> list[int]:
    ids = entry["hash_ids"]
    if not isinstance(ids, list) or not all(type(each) is int for each in ids):
        raise ValueError(f"hash_ids is {str(ids)[:80]!r}, but must be a list of whole numbers")
    return ids
