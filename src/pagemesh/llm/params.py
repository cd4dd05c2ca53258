"""What a user asks for: the settings of the sampler, and those of the answer around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pagemesh.errors import InvalidRequestError
from pagemesh.sampling import params as engine_params
from pagemesh.sampling.params import check_sampling
from pagemesh.sampling.structured.outputs import StructuredOutputs

_SEED_MASK: Final = 2**64 - 1
_MAX_TOKENS: Final = 2**31 - 1
_MAX_ANSWERS: Final = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How answers are generated, under vLLM's names and with its defaults.

    Raises InvalidRequestError naming a value that cannot be.
    """

    n: int = 1
    """Answers to each prompt; answer i draws with seed + i."""

    best_of: int | None = None
    """Answers that are generated, of which the `n` with the highest cumulative log probability are
    given, best first; `n` when None."""

    temperature: float = 1.0
    """Softmax temperature; 0 picks the most likely token."""

    top_p: float = 1.0
    """Nucleus mass in (0, 1]; 1 keeps all tokens."""

    top_k: int = 0
    """Number of most likely tokens kept; 0 and -1 keep all."""

    min_p: float = 0.0
    """Tokens less likely than this times the likeliest one are dropped; 0 keeps all."""

    repetition_penalty: float = 1.0
    """Above 1, tokens of the prompt and the answer become less likely."""

    presence_penalty: float = 0.0
    """In [-2, 2]: taken from the logits of the answer's tokens."""

    frequency_penalty: float = 0.0
    """In [-2, 2]: taken from the logit of a token once for each time it is in the answer."""

    logit_bias: Mapping[int, float] | None = None
    """In [-100, 100], added to the logits of these token ids."""

    bad_words: Sequence[str] | None = None
    """Words that are not generated."""

    allowed_token_ids: Sequence[int] | None = None
    """The only token ids that may be generated; None allows all."""

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

    structured_outputs: StructuredOutputs | Mapping[str, Any] | None = None
    """What the answer must look like, in vLLM's terms: `{"json": schema}`, `{"regex": …}`,
    `{"choice": […]}`, `{"grammar": …}` or `{"json_object": True}`."""

    logprobs: int | None = None
    """Likeliest tokens whose log probabilities are reported beside each generated token's; 0 reports
    that one alone, None none."""

    prompt_logprobs: int | None = None
    """The same for each token of the prompt but the first."""

    def __post_init__(self) -> None:
        self._require("n", _is_int(self.n, 1, _MAX_ANSWERS), f"from 1 to {_MAX_ANSWERS}")
        best_of = self.best_of
        fits = best_of is None or _is_int(best_of, self.n, _MAX_ANSWERS)
        self._require("best_of", fits, f"from n = {self.n} to {_MAX_ANSWERS}, or None")
        self._require(
            "seed", self.seed is None or _is_int(self.seed, -(2**63), _SEED_MASK), "64 bits"
        )
        self._require("ignore_eos", isinstance(self.ignore_eos, bool), "true or false")
        self._require("stop", _are_strings(self.stop), "a string or several, none of them empty")
        self._require(
            "bad_words",
            self.bad_words is None
            or (not isinstance(self.bad_words, str) and _are_strings(self.bad_words, blank=False)),
            "a list of strings, none of them blank",
        )
        for name in ("stop_token_ids", "allowed_token_ids"):
            value = getattr(self, name)
            self._require(name, value is None or isinstance(value, Sequence), "a list of token ids")
        self._require(
            "logit_bias",
            self.logit_bias is None or isinstance(self.logit_bias, Mapping),
            "numbers by token id",
        )
        # What depends on the model is checked when it is known.
        check_sampling(self.for_engine(seed=0, room=_MAX_TOKENS), vocab_size=_MAX_TOKENS)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, whichever form it has."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def num_answers(self) -> int:
        """Answers that are generated."""
        return self.best_of or self.n

    def for_engine(
        self, seed: int, room: int, bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    ) -> engine_params.SamplingParams:
        """What the engine is asked for.

        `seed` is any integer; `room` is how many tokens the context has left behind the prompt;
        `bad_words` become ids elsewhere, because they need a tokenizer.
        """
        own = {field.name for field in dataclasses.fields(self)}
        shared = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(engine_params.SamplingParams)
            if field.name in own
        }
        allowed = self.allowed_token_ids
        # Answers are compared by what the model thought of them.
        is_ranked = self.num_answers > self.n
        return engine_params.SamplingParams(
            **shared
            | {
                "seed": seed & _SEED_MASK,
                "max_tokens": max(1, room) if self.max_tokens is None else self.max_tokens,
                "stop_token_ids": tuple(self.stop_token_ids or ()),
                "logit_bias": dict(self.logit_bias or {}),
                "allowed_token_ids": None if allowed is None else tuple(allowed),
                "bad_words_token_ids": bad_words_token_ids,
                "structured_outputs": self._structured_outputs(),
                "logprobs": 0 if is_ranked and self.logprobs is None else self.logprobs,
            }
        )

    def _structured_outputs(self) -> StructuredOutputs | None:
        outputs = self.structured_outputs
        if outputs is None or isinstance(outputs, StructuredOutputs):
            return outputs
        self._require(
            "structured_outputs", isinstance(outputs, Mapping), "an object like {'json': …}"
        )
        try:
            return StructuredOutputs.of(**outputs)
        except TypeError as error:
            raise InvalidRequestError(
                f"structured_outputs: {error}", param="structured_outputs"
            ) from error

    def _require(self, name: str, condition: bool, expected: str) -> None:
        if not condition:
            value = getattr(self, name)
            raise InvalidRequestError(f"{name} is {value!r}, but must be {expected}", param=name)


def _is_int(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _are_strings(value: object, *, blank: bool = True) -> bool:
    """Whether this is a string or several, none of them empty, nor of blanks alone unless they may be."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(isinstance(item, str) and (item if blank else item.strip()) for item in value)
    return value is None or (isinstance(value, str) and value != "")
