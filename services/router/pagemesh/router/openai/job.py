"""A checked request with all that is needed to run it and to write its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagemesh.router.generation.interface import TextGenerator
from pagemesh.router.generation.request import GenerationRequest, Usage
from pagemesh.router.openai.responses import CollectedChoice, Responder, best_choices


@dataclass(frozen=True, slots=True)
class Job:
    """A checked request, ready to run."""

    generator: TextGenerator
    """Of the model that was asked for."""

    request: GenerationRequest
    responder: Responder
    stream: bool

    num_given: int
    """Answers given to each prompt, the best of those generated."""

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> dict[str, Any]:
        """The body of an answer that is not streamed, from all choices of the request."""
        given = best_choices(choices, self.request.num_prompts, self.num_given)
        return self.responder.whole(given, usage)
