"""What one engine step computed: plain ids and numbers, made by the runner, read by the scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pagemesh.errors import PagemeshError
from pagemesh.sampling.logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class StepResult:
    """The outcome of a batch; the KV of all its tokens is stored. Mappings are by request id."""

    token_ids: Sequence[int] = ()
    """One for each sequence with `sampling`, in batch order; without meaning for those in `errors`."""

    logprobs: Mapping[str, TokenLogprobs] = field(default_factory=dict)
    """Of the sampled tokens, for the sequences that ask for them."""

    prompt_logprobs: Mapping[str, Sequence[TokenLogprobs]] = field(default_factory=dict)
    """Of the prompt's tokens that follow those of a chunk, for the sequences that ask for them."""

    pooled_states: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    """Normed hidden states [N, hidden] of the tokens in `pooled`."""

    errors: Mapping[str, PagemeshError] = field(default_factory=dict)
    """Sequences that could not be computed, each for a reason of its own: their KV must not be used."""
