"""W3C trace context: which trace a request belongs to, as every hop is told.

Source: W3C Trace Context, sections 3 and 4 (https://www.w3.org/TR/trace-context/). Where a process makes no
span of its own, what a caller sent goes on unchanged.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

_TRACEPARENT: Final = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace_id>[0-9a-f]{32})-(?P<parent_id>[0-9a-f]{16})-[0-9a-f]{2}(?P<rest>-.*)?"
)
# Printable ASCII, as an HTTP header may have; anything else could not be sent on.
_TRACESTATE: Final = re.compile(r"[\x20-\x7e]{1,512}")
_MAX_STATE_MEMBERS: Final = 32
_ODD: Final = frozenset("13579bdf")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A valid traceparent, and the tracestate that came with it; both empty for no trace."""

    traceparent: str
    tracestate: str = ""
    """Vendors' own data; empty when there was none."""

    @property
    def trace_id(self) -> str:
        """32 hex digits, the same in every process; empty for no trace."""
        return self.traceparent[3:35]

    @property
    def is_sampled(self) -> bool:
        """Whether whoever began the trace has it recorded; False for no trace."""
        # The last bit of two hex digits.
        return self.traceparent[54:55] in _ODD


NO_TRACE: Final = TraceContext("")


def parse_trace(traceparent: str, tracestate: str = "") -> TraceContext:
    """What a caller sent; NO_TRACE when it is malformed, which the standard has one ignore.

    A tracestate that cannot be sent on is dropped alone. Versions above 00 may have more behind the flags.
    """
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None or match["version"] == "ff" or (match["version"] == "00" and match["rest"]):
        return NO_TRACE
    if not match["trace_id"].strip("0") or not match["parent_id"].strip("0"):
        return NO_TRACE
    has_state = _TRACESTATE.fullmatch(tracestate) and tracestate.count(",") < _MAX_STATE_MEMBERS
    return TraceContext(traceparent, tracestate if has_state else "")


def new_trace() -> TraceContext:
    """A trace for a request that came with none; not sampled, because nobody here records it."""
    return TraceContext(f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-00")
