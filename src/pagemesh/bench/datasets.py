"""The requests of each dataset: prompts, and how long prompts and answers are."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple

from pagemesh.bench.prompt_writer import Prompt, PromptWriter
from pagemesh.bench.settings import DatasetConfig
from pagemesh.errors import ConfigError
from pagemesh.workload.chats import parse_json, read_chats
from pagemesh.workload.files import read_text

_MIN_TOKENS: Final = 4
_MAX_PROMPT_TOKENS: Final = 1024
_MAX_TOTAL_TOKENS: Final = 2048
"""Of the conversations of a file, those outside are left out, as `vllm bench` does."""


class Sample(NamedTuple):
    """One request."""

    prompt: str
    num_prompt_tokens: int
    """As the tokenizer counts them; a chat's template adds some."""
    num_output_tokens: int
    """Asked for."""


class Dataset:
    """Gives the requests of one rate after the other, other ones each time."""

    def __init__(self, config: DatasetConfig, writer: PromptWriter) -> None:
        """Raises ConfigError for a file that cannot be used."""
        self._config = config
        self._writer = writer
        self._num_taken = 0
        self._conversations: list[Sample] = []
        if config.dataset_path is not None:
            self._conversations = _read_sharegpt(config, config.dataset_path, self._writer)

    @property
    def num_conversations(self) -> int | None:
        """Of the file; None without one."""
        return None if self._config.dataset_path is None else len(self._conversations)

    def take(self, num_samples: int) -> list[Sample]:
        """The next ones. Those of a file come again from its beginning when there are too few."""
        draws = random.Random(f"{self._config.seed} {self._num_taken}")
        samples = _TAKERS[self._config.dataset_name](self, draws, num_samples)
        self._num_taken += num_samples
        return samples

    def _take_random(self, draws: random.Random, num_samples: int) -> list[Sample]:
        config = self._config
        num_input = config.random_input_len if config.input_len is None else config.input_len
        num_output = config.answer_len or 0
        prefix = self._shared(config.random_prefix_len)
        samples = []
        for _ in range(num_samples):
            num_tokens = _draw_length(draws, num_input, config.random_range_ratio)
            prompt = self._writer.write(draws, prefix.num_tokens + num_tokens, prefix)
            answer = _draw_length(draws, num_output, config.random_range_ratio)
            samples.append(Sample(*prompt, answer))
        return samples

    def _shared(self, num_tokens: int) -> Prompt:
        """What all prompts begin with, at all rates."""
        draws = random.Random(f"{self._config.seed} prefix")
        return self._writer.write(draws, num_tokens)

    def _take_prefix_repetition(self, draws: random.Random, num_samples: int) -> list[Sample]:
        config, samples = self._config, []
        num_prefixes = min(config.prefix_repetition_num_prefixes, num_samples)
        num_tokens = config.prefix_repetition_prefix_len + config.prefix_repetition_suffix_len
        for _ in range(num_prefixes):
            prefix = self._writer.write(draws, config.prefix_repetition_prefix_len)
            for _ in range(num_samples // num_prefixes):
                prompt = self._writer.write(draws, num_tokens, prefix)
                samples.append(Sample(*prompt, config.answer_len or 0))
        draws.shuffle(samples)
        return samples

    def _take_sharegpt(self, draws: random.Random, num_samples: int) -> list[Sample]:
        found, first = self._conversations, self._num_taken
        return [found[number % len(found)] for number in range(first, first + num_samples)]


_TAKERS: Final[dict[str, Callable[[Dataset, random.Random, int], list[Sample]]]] = {
    "random": Dataset._take_random,
    "prefix_repetition": Dataset._take_prefix_repetition,
    "sharegpt": Dataset._take_sharegpt,
}


def _draw_length(draws: random.Random, length: int, ratio: float) -> int:
    least, most = int(length * (1 - ratio)), int(length * (1 + ratio))
    return max(1, draws.randint(least, most))


def _read_sharegpt(config: DatasetConfig, path: str, writer: PromptWriter) -> list[Sample]:
    """The first message of each conversation that is of a usual length, with the length of its answer."""
    flag = "--dataset-path"
    chats = read_chats(flag, path, parse_json(flag, path, read_text(flag, path)))
    random.Random(config.seed).shuffle(chats)
    samples = []
    for chat in chats:
        spoken = [message for message in chat if message.role != "system"]
        if [message.role for message in spoken[:2]] != ["user", "assistant"]:
            continue
        num_prompt = writer.count(spoken[0].text)
        num_output = config.answer_len or writer.count(spoken[1].text)
        is_usual = num_prompt >= _MIN_TOKENS and (config.answer_len or num_output >= _MIN_TOKENS)
        is_short = num_prompt <= _MAX_PROMPT_TOKENS and num_prompt + num_output <= _MAX_TOTAL_TOKENS
        if is_usual and is_short:
            samples.append(Sample(spoken[0].text, num_prompt, num_output))
    if not samples:
        raise ConfigError(
            f"{flag} is {path!r}, which has no conversation that begins with a message of {_MIN_TOKENS} to"
            f" {_MAX_PROMPT_TOKENS} tokens and an answer to it"
        )
    return samples
