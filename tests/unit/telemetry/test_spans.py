"""W3C trace context: what is passed on, and what is ignored."""

from __future__ import annotations

import pytest
from opentelemetry.trace import INVALID_SPAN

from pagemesh.telemetry.spans import is_sampled, new_trace, read_trace, trace_id_of, write_trace

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
VALID = f"00-{TRACE_ID}-b7ad6b7169203331-01"


def test_a_valid_traceparent_is_passed_on_unchanged() -> None:
    state = "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"
    span = read_trace(VALID, state)
    assert write_trace(span) == {"traceparent": VALID, "tracestate": state}
    assert trace_id_of(span) == TRACE_ID
    assert is_sampled(span)
    assert not is_sampled(read_trace(f"{VALID[:-1]}0"))


def test_later_versions_may_have_more_behind_the_flags_and_go_on_as_ours() -> None:
    for later in (f"01{VALID[2:]}-what-comes-later", f"cc{VALID[2:]}"):
        assert write_trace(read_trace(later)) == {"traceparent": VALID}


@pytest.mark.parametrize(
    "traceparent",
    [
        pytest.param("", id="none"),
        pytest.param(f"ff{VALID[2:]}", id="version that is forbidden"),
        pytest.param(f"{VALID}-more", id="more than version 00 has"),
        pytest.param(f"01{VALID[2:]}.more", id="more without a dash"),
        pytest.param(VALID.upper(), id="upper case"),
        pytest.param(f"00-{'0' * 32}-b7ad6b7169203331-01", id="zero trace id"),
        pytest.param(f"00-{TRACE_ID}-{'0' * 16}-01", id="zero parent id"),
        pytest.param(f"00-{TRACE_ID[1:]}-b7ad6b7169203331-01", id="short trace id"),
        pytest.param(f"{VALID}\n-", id="line break"),
        pytest.param(f"0{VALID[2:]}", id="short version"),
    ],
)
def test_a_malformed_traceparent_is_ignored_with_its_state(traceparent: str) -> None:
    span = read_trace(traceparent, "a=1")
    assert span is INVALID_SPAN
    assert (write_trace(span), trace_id_of(span), is_sampled(span)) == ({}, "", False)


@pytest.mark.parametrize(
    "tracestate",
    ["a=\n", "a=\u00fc", "a=" + "x" * 511, ",".join(f"k{i}=1" for i in range(33))],
    ids=["line break", "not ASCII", "too long", "too many"],
)
def test_a_state_that_cannot_be_sent_on_is_dropped_alone(tracestate: str) -> None:
    assert write_trace(read_trace(VALID, tracestate)) == {"traceparent": VALID}


def test_a_new_trace_is_valid_unsampled_and_never_the_same() -> None:
    first, second = new_trace(), new_trace()
    told = write_trace(first)["traceparent"]
    assert write_trace(read_trace(told)) == {"traceparent": told}
    assert told.endswith("-00")
    assert trace_id_of(first) != trace_id_of(second)
    assert trace_id_of(INVALID_SPAN) == ""
