"""What is added to a span that is recorded: such a one knows what it is called, and what was said of it."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.trace import Span


def name_after(span: Span, subject: str) -> None:
    """Say what it works on, which becomes the end of its name; at most once."""
    if span.is_recording():
        # Loaded by then: nothing else records.
        from opentelemetry.sdk.trace import ReadableSpan

        assert isinstance(span, ReadableSpan)
        span.update_name(f"{span.name} {subject}")


def count(span: Span, numbers: Mapping[str, int]) -> None:
    """Count something of it: what is counted of one attribute is summed."""
    if not span.is_recording():
        return
    from opentelemetry.sdk.trace import ReadableSpan

    assert isinstance(span, ReadableSpan)
    known = span.attributes or {}
    for name, number in numbers.items():
        before = known.get(name, 0)
        assert isinstance(before, int), f"{name} is counted"
        span.set_attribute(name, before + number)
