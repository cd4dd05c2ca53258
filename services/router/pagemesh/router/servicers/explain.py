"""Whether a call asks for the decision about it, and where it is put in the answer."""

from __future__ import annotations

from functools import partial
from typing import Final

from pagemesh.errors import InvalidRequestError
from pagemesh.router.generation.interface import RunningGeneration
from pagemesh.router.route_header import EXPLAIN_KEY, ROUTE_KEY, route_line
from pagemesh.router.servicers.read_call import AnyContext
from pagemesh.rpc.call_context import add_answer_metadata

_VALUES: Final = {"true": True, "1": True, "false": False, "0": False}


class Explainer:
    """Explains decisions if the operator allows it."""

    def __init__(self, *, is_allowed: bool) -> None:
        self._is_allowed = is_allowed

    def is_wanted(self, context: AnyContext) -> bool:
        """Whether a call asks for it; InvalidRequestError for no clear answer, or where it is not allowed."""
        given = [value for key, value in context.invocation_metadata() or () if key == EXPLAIN_KEY]
        wanted = False
        for value in given:
            text = str(value)
            answer = _VALUES.get(text.strip().lower())
            if answer is None:
                raise InvalidRequestError(
                    f"the header {EXPLAIN_KEY} is {text[:40]!r}, but must be true or false",
                    param=EXPLAIN_KEY,
                )
            wanted |= answer
        if wanted and not self._is_allowed:
            raise InvalidRequestError(
                f"the header {EXPLAIN_KEY} is true, but this router runs without --explain-routes",
                param=EXPLAIN_KEY,
            )
        return wanted

    def explain(self, generation: RunningGeneration) -> None:
        """Have the answer begin with the decision about a generation, if there is one by then."""
        add_answer_metadata(partial(_headers, generation))


def _headers(generation: RunningGeneration) -> tuple[tuple[str, str], ...]:
    explanation = generation.explanation
    if explanation is None:
        return ()
    return ((ROUTE_KEY, route_line(explanation, generation.num_prompts)),)
