"""What a user asks for: the settings of the sampler, and those of the answer around it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pagemesh.errors import InvalidRequestError
from pagemesh.sampling import params as engine_params

_SEED_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How answers are generated, under vLLM's names and with its defaults.

    Raises InvalidRequestError naming a value that cannot be.
    """

    n: int = 1
    """Answers to each prompt; answer i draws with seed + i."""

    temperature: float = 1.0
    """Softmax temperature; 0 picks the most likely token."""

    top_p: float = 1.0
    """Nucleus mass in (0, 1]; 1 keeps all tokens."""

    top_k: int = 0
    """Number of most likely tokens kept; 0 and -1 keep all."""

    seed: int | None = None
    """Equal seeds give equal answers; drawn anew for each prompt when None."""

    max_tokens: int | None = 16
    """Most tokens of an answer; None means as many as the context has room for."""

    min_tokens: int = 0
    """No stop token and no stop string ends the answer before this many tokens."""

    stop: str | Sequence[str] | None = None
    """Strings that end the answer; not part of its text."""

    stop_token_ids: Sequence[int] | None = None
    """Token ids that end the answer; the last of its ids, but without text."""

    ignore_eos: bool = False
    """Go on after the model's own end-of-sequence tokens."""

    logprobs: int | None = None
    """Likeliest tokens whose log probabilities are reported beside each generated token's; 0 reports
    that one alone, None none."""

    prompt_logprobs: int | None = None
    """The same for each token of the prompt but the first."""

    def __post_init__(self) -> None:
        self._require(
            "temperature", _is_number(self.temperature) and self.temperature >= 0, "0 or more"
        )
        self._require("top_p", _is_number(self.top_p) and 0 < self.top_p <= 1, "in (0, 1]")
        for name, least in (("n", 1), ("top_k", -1), ("min_tokens", 0)):
            self._require(name, _is_int(getattr(self, name), least), f"an integer from {least}")
        limit, seed, ids = self.max_tokens, self.seed, self.stop_token_ids
        self._require(
            "max_tokens", limit is None or _is_int(limit, 1), "a positive integer or None"
        )
        self._require("seed", seed is None or _is_int(seed, -(2**63), 2**64), "64 bits or None")
        self._require("stop", _is_stop(self.stop), "a string or several, none of them empty")
        self._require(
            "stop_token_ids",
            ids is None or (isinstance(ids, Sequence) and all(_is_int(i, 0) for i in ids)),
            "token ids",
        )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            self._require(name, value is None or _is_int(value, 0), "an integer from 0, or None")
        self._require("ignore_eos", isinstance(self.ignore_eos, bool), "true or false")
        if limit is not None and self.min_tokens > limit:
            self._require("min_tokens", False, f"at most max_tokens = {limit}")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, whichever form it has."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def for_engine(self, seed: int, room: int) -> engine_params.SamplingParams:
        """What the engine is asked for.

        `seed` is any integer; `room` is how many tokens the context has left behind the prompt.
        """
        own = {field.name for field in dataclasses.fields(self)}
        shared = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(engine_params.SamplingParams)
            if field.name in own
        }
        return engine_params.SamplingParams(
            **shared
            | {
                "top_k": max(0, self.top_k),
                "seed": seed & _SEED_MASK,
                "max_tokens": max(1, room) if self.max_tokens is None else self.max_tokens,
                "stop_token_ids": tuple(self.stop_token_ids or ()),
            }
        )

    def _require(self, name: str, condition: bool, expected: str) -> None:
        if not condition:
            value = getattr(self, name)
            raise InvalidRequestError(f"{name} is {value!r}, but must be {expected}", param=name)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_int(value: object, least: int, end: int = 2**31) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < end


def _is_stop(value: object) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(isinstance(stop, str) and stop for stop in value)
    return value is None or (isinstance(value, str) and value != "")
