"""What the router adds to spans that are recorded, and not to others."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import INVALID_SPAN

from pagemesh.router.traced.recorded import count, name_after


def test_what_is_counted_is_summed_by_attribute() -> None:
    span = TracerProvider(shutdown_on_exit=False).get_tracer("test").start_span("chat")
    count(span, {"sum": 2})
    count(span, {"sum": 3, "other": 1})
    name_after(span, "demo")
    assert isinstance(span, ReadableSpan)
    assert span.attributes == {"sum": 5, "other": 1}
    assert span.name == "chat demo"


def test_nothing_is_added_to_a_span_that_is_not_recorded() -> None:
    sampled_out = TracerProvider(ALWAYS_OFF, shutdown_on_exit=False).get_tracer("test")
    for span in (INVALID_SPAN, sampled_out.start_span("chat")):
        count(span, {"sum": 2})
        name_after(span, "demo")
        assert not span.is_recording()
