"""Whether what became of a request is right, by the answer that it has without faults."""

from __future__ import annotations

from tests.support.workers import Received


def has_run_out_of_time(received: Received) -> bool:
    """Whether its deadline ended it."""
    return received.error is not None and received.error.code == "DEADLINE_EXCEEDED"


def what_is_wrong(received: Received, answer: list[int], *, may_end_early: bool) -> str | None:
    """An error other than a deadline's, or wrong tokens, however the request ended; None: nothing.

    One that a deadline or its client ended has a beginning of the answer, any other all of it.
    """
    if received.error is not None and not has_run_out_of_time(received):
        return received.error.message
    given = received.token_ids
    is_cut = not received.is_finished and (may_end_early or has_run_out_of_time(received))
    if given != (answer[: len(given)] if is_cut else answer):
        return f"{given}, not {answer}"
    return None
